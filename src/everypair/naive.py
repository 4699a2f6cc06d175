"""Reference implementation: the double sum over all pairs, in O(n_pos n_neg) time.

Every function takes the arguments of its namesake in `everypair`. It serves as the oracle of the
tests, so it shares no mathematics with the fast implementations:

- Built-in surrogates are computed from their textbook formulas, not from their terms.
- Whether a pair is beyond a knot, ``margin - (s_pos - s_neg) > knot``, is decided exactly for the
  real numbers that the floats represent. At equality the derivatives from below hold.
- Weights are scaled by a power of two first, so weights of any magnitude neither overflow nor
  vanish, and rows of weight 0 take no part.

Pairs are visited in blocks, so 20,000 rows fit in memory.

>>> round(pair_loss([0.9, 0.2, 0.6], [1, 0, 0]), 2)  # (0.3^2 + 0.7^2) / 2
0.29
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair import _formulas, _inputs, surrogates
from everypair._naive_metrics import average_precision, delong, delong_test, partial_auc
from everypair.surrogates import Floats, Surrogate
from everypair.targets.groups import group_codes

__all__ = [
    "auc",
    "average_precision",
    "delong",
    "delong_test",
    "pair_derivatives",
    "pair_hvp",
    "pair_loss",
    "pair_loss_and_grad",
    "pair_row_sums",
    "partial_auc",
]

_PAIRS_PER_BLOCK = 1 << 16
_LARGE = 1e150  # sums of larger shortfalls, or of their squares, may overflow


def pair_loss(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> float:
    """Average a surrogate over every pair; see `everypair.pair_loss`."""
    return _derivatives(_Pairs(scores, labels, surrogate, margin, weights, groups, reduction))[0]


def pair_loss_and_grad(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> tuple[float, NDArray[Any]]:
    """Average a surrogate over every pair, with gradient; see `everypair.pair_loss_and_grad`.

    Examples
    --------
    >>> pair_loss_and_grad([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0])
    (0.625, array([-1.  ,  0.  ,  0.25,  0.75]))
    """
    return _derivatives(_Pairs(scores, labels, surrogate, margin, weights, groups, reduction))[:2]


def pair_derivatives(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> tuple[float, NDArray[Any], NDArray[Any]]:
    """Compute value, gradient and diagonal Hessian; see `everypair.pair_derivatives`."""
    return _derivatives(_Pairs(scores, labels, surrogate, margin, weights, groups, reduction))


def pair_hvp(
    scores: ArrayLike,
    labels: ArrayLike,
    vector: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> NDArray[Any]:
    """Multiply the Hessian by a vector; see `everypair.pair_hvp`."""
    pairs = _Pairs(scores, labels, surrogate, margin, weights, groups, reduction)
    v = _inputs.vector_for(pairs.batch, vector)
    hvp = np.zeros(pairs.scores.size)
    with np.errstate(over="ignore", invalid="ignore"):
        for pos, neg, w in pairs.blocks():
            products = w * pairs.evaluate(pos, neg)[2] * (v[pos][:, None] - v[neg])
            hvp[pos] += products.sum(axis=1)
            hvp[neg] -= products.sum(axis=0)
        return pairs.per_row(hvp)


def auc(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    average: Literal["pairs", "groups", "rows"] = "pairs",
) -> float:
    """Compute the share of pairs in the right order, ties counting half; see `everypair.auc`."""
    if average != "pairs":
        return partial_auc(scores, labels, weights=weights, groups=groups, average=average)
    pairs = _Pairs(scores, labels, weights=weights, groups=groups)
    if pairs.weight == 0.0:
        raise ValueError("auc must have both classes in at least one group; got no pair.")
    total = 0.0
    for pos, neg, w in pairs.blocks():
        s_pos, s_neg = pairs.scores[pos][:, None], pairs.scores[neg]
        total += (w * ((s_pos > s_neg) + 0.5 * (s_pos == s_neg))).sum()
    return float(pairs.reduced(total))


def pair_row_sums(
    scores: ArrayLike,
    others: ArrayLike | None = None,
    *,
    surrogate: str | Surrogate = "sigmoid",
    margin: float | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    other_groups: ArrayLike | None = None,
) -> Floats:
    """Sum a surrogate over all other rows, row by row, in float64; see `everypair.pair_row_sums`.

    Examples
    --------
    >>> pair_row_sums([0.5, 2.0], [0.0, 1.0], surrogate="squared_hinge")
    array([2.5, 0. ])
    """
    x = np.asarray(scores, np.float64).reshape(-1)
    y = x if others is None else np.asarray(others, np.float64).reshape(-1)
    w = np.ones(y.size) if weights is None else np.asarray(weights, np.float64)
    labels = np.arange(x.size + y.size) < x.size
    pairs = _Pairs(np.concatenate([x, y]), labels, surrogate, margin)
    sums = np.zeros(x.size)
    for i in range(x.size):
        values = w * pairs.evaluate(np.array([i]), x.size + np.arange(y.size))[0][0]
        if groups is not None:
            codes = group_codes(groups, groups if other_groups is None else other_groups)
            values = np.where(codes[1] == codes[0][i], values, 0.0)
        sums[i] = np.delete(values, i).sum() if others is None else values.sum()
    return sums.reshape(np.shape(scores))


def _derivatives(pairs: _Pairs) -> tuple[float, NDArray[Any], NDArray[Any]]:
    """Return value, gradient and diagonal Hessian."""
    total, grad, hess = 0.0, *np.zeros((2, pairs.scores.size))
    with np.errstate(over="ignore", invalid="ignore"):
        for pos, neg, w in pairs.blocks():
            value, slope, curvature = pairs.evaluate(pos, neg)
            total += (w * value).sum()
            grad[pos] -= (w * slope).sum(axis=1)
            grad[neg] += (w * slope).sum(axis=0)
            hess[pos] += (w * curvature).sum(axis=1)
            hess[neg] += (w * curvature).sum(axis=0)
        return float(pairs.reduced(total)), pairs.per_row(grad), pairs.per_row(hess)


class _Pairs:
    """All pairs of a batch, with their weights divided by ``2**exponent``.

    The exponent is chosen so that neither the largest weight nor a mean over all pairs overflows or
    underflows.
    """

    def __init__(
        self,
        scores: ArrayLike,
        labels: ArrayLike,
        surrogate: str | Surrogate = "squared_hinge",
        margin: float | None = None,
        weights: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        reduction: str = "mean",
    ) -> None:
        self.batch = batch = _inputs.batch_from(scores, labels, weights, groups)
        known = surrogates.get(surrogate)
        self._pieces = _formulas.pieces_of(known)
        self._margin = _inputs.check_margin(margin, known.default_margin)
        self._mean = _inputs.check_reduction(reduction)
        positive = _inputs.positives(batch)
        self.scores = batch.scores.astype(np.float64)
        n = self.scores.size
        w = np.ones(n) if batch.weights is None else batch.weights
        rows = np.arange(n) if batch.order is None else batch.order
        self._groups = []
        for group in [rows] if batch.offsets is None else np.split(rows, batch.offsets[1:-1]):
            pos, neg = (group[(w[group] > 0.0) & (positive[group] == c)] for c in (True, False))
            if pos.size and neg.size:
                self._groups.append((pos, neg, *_scaled(w[pos]), *_scaled(w[neg])))
        self._exponent = max((e_pos + e_neg for *_, e_pos, _, e_neg in self._groups), default=0)
        if max(np.abs(self.scores).max(), self._margin) > _LARGE:
            self._exponent += 2 * n.bit_length()
        self.weight = sum(float(w.sum()) for _, _, w in self.blocks())

    def blocks(self) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Floats]]:
        """Yield rows of positives, rows of negatives and the scaled weights of their pairs."""
        for pos, neg, w_pos, e_pos, w_neg, e_neg in self._groups:
            w_pos = np.ldexp(w_pos, e_pos + e_neg - self._exponent)[:, None]
            height = max(1, _PAIRS_PER_BLOCK // neg.size)
            for i in range(0, pos.size, height):
                yield pos[i : i + height], neg, w_pos[i : i + height] * w_neg

    def evaluate(self, pos: NDArray[np.intp], neg: NDArray[np.intp]) -> tuple[Floats, ...]:
        """Return value, slope and curvature of the surrogate, each of shape (n_pos, n_neg)."""
        t = self._shortfall_minus(0.0, pos, neg)
        found: tuple[Floats, ...] = (np.zeros_like(t),) * 3
        for knot, formula in self._pieces:
            above = knot is None or (self._shortfall_minus(knot, pos, neg) if knot else t) > 0.0
            found = tuple(np.where(above, a, b) for a, b in zip(formula(t), found, strict=True))
        return found

    def _shortfall_minus(self, knot: float, pos: NDArray[np.intp], neg: NDArray[np.intp]) -> Floats:
        """Return ``margin - (s_pos - s_neg) - knot`` with the sign that it has without rounding."""
        s_pos, s_neg = self.scores[pos], self.scores[neg]
        difference = self._margin - (s_pos[:, None] - s_neg) - knot
        # Rounding changes the sign of small results only. They are added up again exactly.
        sizes = np.abs(s_pos).max(), np.abs(s_neg).max(), self._margin, abs(knot)
        rounding = sum(4 * sys.float_info.epsilon * size for size in sizes)
        i, j = np.nonzero(np.abs(difference) <= rounding)
        difference[i, j] = _exact_sum(s_neg[j], -s_pos[i], self._margin, -knot)
        return difference

    def reduced(self, total: Any) -> Any:
        """Divide a sum over all pairs by their weight, or undo the scaling of the weights."""
        if self._mean:
            return total / self.weight if self.weight > 0.0 else total
        return np.ldexp(total, self._exponent)

    def per_row(self, total: Floats) -> NDArray[Any]:
        """Reduce an array with one entry per row; dtype and shape are those of the scores."""
        array: NDArray[Any] = self.reduced(total)
        return array.astype(self.batch.dtype).reshape(self.batch.shape)


def _scaled(weights: Floats) -> tuple[Floats, int]:
    """Return ``weights / 2**exponent``, the largest in [1, 2), and the exponent."""
    exponent = int(np.frexp(weights.max())[1]) - 1
    return np.ldexp(weights, -exponent), exponent


def _exact_sum(*parts: Floats | float) -> Any:
    """Add real numbers without rounding before the end, so that the sign is exact.

    The sum is a list of floats that do not overlap, in increasing order (Shewchuk 1997, "Adaptive
    precision floating-point arithmetic", algorithm Grow-Expansion).
    """
    expansion: list[Any] = []
    for part in parts:
        rounded: Any = part
        for i, small in enumerate(expansion):
            larger = rounded + small
            from_small = larger - rounded
            error = (rounded - (larger - from_small)) + (small - from_small)
            rounded, expansion[i] = larger, error
        expansion.append(rounded)
    return sum(expansion)
