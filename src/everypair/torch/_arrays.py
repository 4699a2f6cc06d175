"""The pair sums in torch operations, on any device.

No operation reads a value back, so an accelerator never waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from everypair.arrays import pair_sums, terms
from everypair.arrays.double_double import Number, SlicedSums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from everypair.surrogates import KnotTerm

__all__ = ["evaluate"]


def evaluate(
    scores: Tensor,
    positive: Tensor,
    weights: Tensor | None,
    groups: Tensor | None,
    vector: Tensor | None,
    knot_terms: tuple[KnotTerm, ...],
    *,
    mean: bool,
    grad: bool,
    hess: bool,
) -> pair_sums.PairSums:
    """Return value, pair weight, gradient, diagonal Hessian and Hessian times vector.

    The last dimension of `scores` holds the rows; the others hold batches that have no pairs in
    common. `positive`, `weights`, `groups` and `vector` have the same shape. Results are in the
    type that sums are computed in. The value is zero where only the Hessian times vector is asked.
    """
    dtype = _work_dtype(scores.device)
    compensated = dtype is torch.float32 or pair_sums.needs_low_parts(
        wide=scores.dtype is torch.float64,
        n_terms=len(knot_terms),
        weighted=weights is not None,
        grouped=groups is not None,
    )
    x, w, z = (None if a is None else a.to(dtype) for a in (scores, weights, vector))
    return pair_sums.evaluate(
        TorchArrays(x, compensated=compensated), x, positive, w, groups, z,
        terms.split(knot_terms), mean=mean, grad=grad, hess=hess,
    )  # fmt: skip


def _work_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64


class TorchArrays(SlicedSums):
    """The operations of torch for tensors like `scores`."""

    where = staticmethod(torch.where)
    concatenate = staticmethod(torch.cat)
    zeros_like = staticmethod(torch.zeros_like)
    isfinite = staticmethod(torch.isfinite)
    broadcast = staticmethod(torch.broadcast_to)

    def __init__(self, scores: Any, *, compensated: bool) -> None:
        super().__init__(compensated=compensated)
        self._like = scores
        info = torch.finfo(scores.dtype)
        self.float_range = (info.tiny, info.max)
        self._integers = torch.int64
        if scores.dtype is torch.float32:
            self.mantissa_bits, self._integers = 23, torch.int32

    def as_uint8(self, a: Tensor) -> Tensor:
        return a.to(torch.uint8)

    def column(self, factors: Any) -> Number:
        # Filling a tensor on its device does not wait for it; copying a list there would.
        def of_terms(values: Sequence[float]) -> Tensor:
            column = torch.stack([self._like.new_full((), value) for value in values])
            return column.reshape(-1, *[1] * self._like.dim())

        if self._like.dtype is torch.float64:
            return Number(of_terms(factors))
        rounded = [float(np.float32(factor)) for factor in factors]
        return Number(
            of_terms(rounded), of_terms([a - b for a, b in zip(factors, rounded, strict=True)])
        )

    def keep_bits(self, a: Tensor, dropped: int) -> Tensor:
        return (a.view(self._integers) & -(1 << dropped)).view(a.dtype)

    def order(self, keys: Sequence[Tensor]) -> Tensor:
        order = keys[0].sort(dim=-1, stable=True).indices
        for key in keys[1:]:
            order = order.gather(-1, key.gather(-1, order).sort(dim=-1, stable=True).indices)
        return order

    def gather(self, a: Tensor, index: Tensor) -> Tensor:
        return a.gather(-1, index.expand(a.shape))

    def scatter(self, a: Tensor, index: Tensor) -> Tensor:
        return torch.empty_like(a).scatter(-1, index, a)

    def bounds(self, groups: Tensor) -> tuple[Tensor, Tensor]:
        groups = groups.contiguous()
        stop = torch.searchsorted(groups, groups, right=True) - 1
        return torch.searchsorted(groups, groups), stop

    def row_numbers(self, like: Tensor) -> Tensor:
        return torch.arange(like.shape[-1], device=like.device)

    def roll(self, a: Tensor, by: int) -> Tensor:
        return a.roll(by, -1)

    def flip(self, a: Tensor) -> Tensor:
        return a.flip(-1)

    def sum(self, a: Tensor) -> Tensor:
        return a.sum(-1, keepdim=True)

    def max(self, a: Tensor) -> Tensor:
        return a.amax(-1, keepdim=True)

    def cumsum(self, a: Tensor) -> Tensor:
        if not (a.is_cuda and torch.are_deterministic_algorithms_enabled()):
            return a.cumsum(-1)
        # torch's own operation raises for CUDA tensors where results must be deterministic.
        reach = 1
        while reach < a.shape[-1]:
            a = torch.cat((a[..., :reach], a[..., reach:] + a[..., :-reach]), -1)
            reach *= 2
        return a
