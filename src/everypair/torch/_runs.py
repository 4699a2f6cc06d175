"""Rows sorted by place, and sums along them that start anew at every group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from everypair.torch._compensated import Number, cumulated, each, minus, plus, two_sum

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Runs", "order_of"]


def order_of(high: Tensor, low: Tensor, positive: Tensor, groups: Tensor | None) -> Tensor:
    """Return the order by group, then by the place ``high + low``; a tied negative comes first.

    The low parts of positives are zero, so only the sign of a negative's decides among places
    whose high parts are equal.
    """
    rank = torch.where(positive, 1, torch.where(low > 0.0, 2, 0)).to(torch.uint8)
    order = rank.sort(dim=-1, stable=True).indices
    for key in (high,) if groups is None else (high, groups):
        order = order.gather(-1, key.gather(-1, order).sort(dim=-1, stable=True).indices)
    return order


class Runs:
    """The groups of sorted rows; without groups, all rows are one."""

    def __init__(self, rows: Tensor, groups: Tensor | None) -> None:
        n = rows.shape[-1]
        place = torch.arange(n, device=rows.device)
        self.start: Tensor | None = None
        self.stop: Tensor | None = None
        self.is_head = place == 0
        if groups is not None:
            groups = groups.contiguous()
            self.start = torch.searchsorted(groups, groups)
            self.stop = torch.searchsorted(groups, groups, right=True)
            self.is_head = place == self.start
        # The last row is followed by the first one, which is a head.
        self.is_tail = self.is_head.roll(-1, -1)

    def before(self, a: Number) -> Number:
        """Return the entry of the row before, zero at the head of a group."""
        return each(lambda part: part.roll(1, -1).masked_fill(self.is_head, 0.0), a)

    def after(self, a: Number) -> Number:
        """Return the entry of the row after, zero at the end of a group."""
        return each(lambda part: part.roll(-1, -1).masked_fill(self.is_tail, 0.0), a)

    def gaps(self, high: Tensor, low: Tensor, *, compensated: bool) -> Number:
        """Return the distance of each place ``high + low`` from the one before."""
        apart = two_sum(high, -high.roll(1, -1))
        rest = low - low.roll(1, -1)
        gap = Number(apart[0] + (apart[1] + rest), None)
        if compensated:
            gap = plus(Number(*apart), Number(rest, torch.zeros_like(rest)))
        return each(lambda part: part.masked_fill(self.is_head, 0.0), gap)

    def prefix(self, a: Number) -> Number:
        """Return the sums from the head of its group to each row, itself included."""
        sums = cumulated(a)
        if self.start is None:
            return sums
        index = self.start - 1
        return minus(sums, each(lambda part: _entries(part, index), sums))

    def suffix(self, a: Number) -> Number:
        """Return the sums from each row, itself included, to the end of its group."""
        sums = each(_flipped, cumulated(each(_flipped, a)))
        if self.stop is None:
            return sums
        index = self.stop
        return minus(sums, each(lambda part: _entries(part, index), sums))

    def totals(self, a: Number) -> Tensor:
        """Return the sum over the group of each row."""
        sums = self.suffix(a).high
        return sums[..., :1] if self.start is None else sums.gather(-1, self.start)


def _flipped(part: Tensor) -> Tensor:
    return part.flip(-1)


def _entries(part: Tensor, index: Tensor) -> Tensor:
    """Return the entries at these places, zero beyond the ends."""
    last = part.shape[-1] - 1
    found = part.gather(-1, index.clamp(0, last))
    return found.masked_fill((index < 0) | (index > last), 0.0)
