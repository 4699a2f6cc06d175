"""Moments of one class below a point of the other, in torch operations on any device.

Rows stand at z = score (positives) or score + shift (negatives), so that a term of the surrogate is
``b0 + b1 d + b2 d^2`` in d = z_neg - z_pos where d > 0. All rows of both classes are sorted by z.
With L the weight of the lower class before a gap between neighbours and U that of the upper class
after it, everything is a sum over gaps,

    T_i = sum over gaps up to row i of  gap L       first moment of the lower class below row i
    R_i = sum over gaps after row i of  gap U       first moment of the upper class above row i
    sum over pairs of d   = sum of  gap L U
    sum over pairs of d^2 = sum of  gap (2 T + gap L) U

in which no addend is negative and an offset of all scores has vanished. A term without a knot
counts the pairs with d <= 0 too: those are the pairs of a second pass with the classes exchanged.

Nothing here reads a value back or has a shape that depends on values (no ``item``, no ``nonzero``,
no indexing by masks), so an accelerator never waits.
"""

from __future__ import annotations

from functools import cached_property, reduce
from typing import TYPE_CHECKING, NamedTuple, cast

import torch

from everypair.torch._compensated import Number, each, minus, plus, scaled, times, total, two_sum
from everypair.torch._runs import Runs, order_of

if TYPE_CHECKING:
    from torch import Tensor

    KnotTerm = tuple[float, float, float, float, bool]

__all__ = ["evaluate"]


class _Sums(NamedTuple):
    """What the terms add up to, before it is divided; None where it is not asked."""

    value: Number | None
    grad: Number | None
    hvp: Number | None
    hess: Number | None


def evaluate(
    scores: Tensor,
    positive: Tensor,
    weights: Tensor | None,
    groups: Tensor | None,
    vector: Tensor | None,
    terms: tuple[KnotTerm, ...],
    *,
    mean: bool,
    grad: bool,
    hess: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return values, pair weights, gradient, Hessian times vector and diagonal, in the work type.

    The last dimension of `scores` holds the rows; the others hold batches that have no pairs in
    common. `positive`, `weights`, `groups` and `vector` have the same shape. Values are zero where
    only a product is asked.
    """
    work = _work_dtype(scores.device)
    compensated = work is torch.float32 or _needs_low_parts(scores, weights, groups, terms)

    def number(tensor: Tensor) -> Number:
        return Number(tensor, torch.zeros_like(tensor) if compensated else None)

    x = scores.to(work)
    w = torch.ones_like(x) if weights is None else weights.to(work)
    w, pair_weight = _weights_that_count(number(w), positive, groups)
    z = None
    if vector is not None:
        # The Hessian sends constants to zero: without the common part, less is left to cancel.
        z = vector.to(work)
        z = z - z.amin(-1, keepdim=True)
    sums = _Sums(
        number(torch.zeros_like(pair_weight)) if grad or z is None else None,
        number(torch.zeros_like(x)) if grad else None,
        None if z is None else number(torch.zeros_like(x)),
        number(torch.zeros_like(x)) if hess else None,
    )
    for term in terms:
        sums = _with_term(
            sums, x, positive, number(w), None if z is None else number(z), groups, term
        )
    divisor = torch.where((pair_weight > 0.0) & mean, pair_weight, 1.0)
    # Sorted to an end that no pair spans, a score that is not finite would go unnoticed.
    taint = (x * 0.0).sum(-1)

    def finished(a: Number | None) -> Tensor | None:
        if a is None:
            return None
        out = a.high if a.low is None else a.high + a.low
        if out.dim() == divisor.dim():
            return out / divisor + taint
        return out / divisor.unsqueeze(-1) + taint.unsqueeze(-1)

    value = finished(sums.value)
    return (
        torch.zeros_like(pair_weight) if value is None else value,
        pair_weight,
        finished(sums.grad),
        finished(sums.hvp),
        finished(sums.hess),
    )


def _work_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64


def _needs_low_parts(
    scores: Tensor,
    weights: Tensor | None,
    groups: Tensor | None,
    terms: tuple[KnotTerm, ...],
) -> bool:
    """Return whether sums in double precision would lose digits that the scores have.

    Several terms may grow against each other: far from its knots the Huber hinge is a difference
    of two squares, which costs as many digits as the scores are spread over. And one running sum
    passes through all groups, so heavy ones round away light ones.
    """
    if scores.dtype is torch.float64 or len(terms) > 1:
        return True
    return weights is not None and groups is not None


def _weights_that_count(
    w: Number, positive: Tensor, groups: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the weights, zero in a group that has no pair, and the weight of all pairs."""
    w_pos = each(lambda part: part * positive, w)
    w_neg = each(lambda part: part * ~positive, w)
    if groups is None:
        return w.high, total(w_pos).high * total(w_neg).high
    order = groups.sort(dim=-1, stable=True).indices
    runs = Runs(groups, groups.gather(-1, order))

    def mass(of_class: Number) -> Tensor:
        return runs.totals(each(lambda part: part.gather(-1, order), of_class))

    both = mass(w_pos) * mass(w_neg)
    # One running sum passes through all groups: what is in no pair must leave no rounding in it.
    live = torch.empty_like(positive).scatter(-1, order, both > 0.0)
    return w.high * live, (both * runs.is_head).sum(-1)


def _with_term(
    sums: _Sums,
    x: Tensor,
    positive: Tensor,
    w: Number,
    z: Number | None,
    groups: Tensor | None,
    term: KnotTerm,
) -> _Sums:
    shift, b0, b1, b2, truncated = term
    high, low = two_sum(x, torch.full_like(x, shift).masked_fill(positive, 0.0))
    order = order_of(high, low, positive, groups)

    def sorted_rows(a: Tensor) -> Tensor:
        return a.gather(-1, order)

    def rows(a: Tensor) -> Tensor:
        return torch.empty_like(a).scatter(-1, order, a)

    runs = Runs(x, None if groups is None else sorted_rows(groups))
    gap = runs.gaps(sorted_rows(high), sorted_rows(low), compensated=w.low is not None)
    is_pos = sorted_rows(positive)
    w, z = each(sorted_rows, w), None if z is None else each(sorted_rows, z)
    sides = [_Side(runs, gap, w, is_upper=~is_pos)]
    slopes = [b1]
    if not truncated:
        sides.append(_Side(runs, gap, w, is_upper=is_pos))
        slopes.append(-b1)
    value, grad, hvp, hess = sums
    for side, slope in zip(sides, slopes, strict=True):
        if value is not None and (b0 or b1 or b2):
            value = plus(value, side.value(b0, slope, b2))
        if grad is not None and (b1 or b2):
            grad = plus(grad, each(rows, side.grad(slope, b2)))
        if hvp is not None and z is not None and b2:
            hvp = plus(hvp, each(rows, side.hvp(b2, z)))
        if hess is not None and b2:
            hess = plus(hess, each(rows, side.hess(b2)))
    return _Sums(value, grad, hvp, hess)


class _Side:
    """The pairs of a lower row and an upper one, in sorted rows."""

    def __init__(self, runs: Runs, gap: Number, w: Number, *, is_upper: Tensor) -> None:
        self.runs, self.w, self.is_upper = runs, w, is_upper
        self.lower = each(lambda part: part * ~is_upper, w)
        self.upper = each(lambda part: part * is_upper, w)
        self.below = runs.prefix(self.lower)
        self.above = runs.suffix(self.upper)
        self._before = runs.before(self.below)
        # A gap that no pair spans may be far wider than all others: it would leave rounding errors.
        spanned = (self._before.high > 0.0) & (self.above.high > 0.0)
        self.gap = each(lambda part: torch.where(spanned, part, 0.0), gap)

    @cached_property
    def step(self) -> Number:
        """What each gap adds to the first moment of the lower rows."""
        return times(self.gap, self._before)

    @cached_property
    def first(self) -> Number:
        """The first moment of the lower rows below each row."""
        return self.runs.prefix(self.step)

    def value(self, b0: float, b1: float, b2: float) -> Number:
        """Return the sum of the term over all pairs."""
        parts = []
        if b0:
            parts.append(scaled(total(times(self.upper, self.below)), b0))
        if b1:
            parts.append(scaled(total(times(self.step, self.above)), b1))
        if b2:
            twice = scaled(self.runs.before(self.first), 2.0)
            widened = times(self.gap, plus(twice, self.step))
            parts.append(scaled(total(times(widened, self.above)), b2))
        return reduce(plus, parts)

    def grad(self, b1: float, b2: float) -> Number:
        """Return the derivative of that sum in the place of each row."""
        parts = []
        if b1:
            parts.append(scaled(self._opposite_mass, b1))
        if b2:
            over = self.runs.after(self.runs.suffix(times(self.gap, self.above)))
            parts.append(scaled(self._by_side(self.first, over), 2.0 * b2))
        slope = times(self.w, reduce(plus, parts))
        return each(lambda part: torch.where(self.is_upper, part, -part), slope)

    def hvp(self, b2: float, z: Number) -> Number:
        """Return the derivative of `grad` along z."""
        opposite = self._by_side(
            self.runs.prefix(times(self.lower, z)), self.runs.suffix(times(self.upper, z))
        )
        return times(self.w, scaled(minus(times(z, self._opposite_mass), opposite), 2.0 * b2))

    def hess(self, b2: float) -> Number:
        """Return the derivative of each row's `grad` in its own place."""
        return times(self.w, scaled(self._opposite_mass, 2.0 * b2))

    @cached_property
    def _opposite_mass(self) -> Number:
        return self._by_side(self.below, self.above)

    def _by_side(self, upper: Number, lower: Number) -> Number:
        parts = zip(upper, lower, strict=True)
        high, low = (
            None if a is None or b is None else torch.where(self.is_upper, a, b) for a, b in parts
        )
        return Number(cast("Tensor", high), low)
