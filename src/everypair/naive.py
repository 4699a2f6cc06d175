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

import math
import sys
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair import surrogates
from everypair.inputs import batches, pair_options, ranked, survival
from everypair.inputs.groups import group_codes, group_numbers
from everypair.surrogates import Floats, Formula, Surrogate

__all__ = [
    "auc",
    "pair_derivatives",
    "pair_hvp",
    "pair_loss",
    "pair_loss_and_grad",
    "pair_row_sums",
]

Rows = NDArray[np.intp]

_PAIRS_PER_BLOCK = 1 << 16
_LARGE = 1e150  # sums of larger shortfalls, or of their squares, may overflow


def pair_loss(scores: ArrayLike, labels: ArrayLike, **options: Any) -> float:
    """Average a surrogate over every pair; see `everypair.pair_loss`."""
    return pair_derivatives(scores, labels, **options)[0]


def pair_loss_and_grad(
    scores: ArrayLike, labels: ArrayLike, **options: Any
) -> tuple[float, NDArray[Any]]:
    """Average a surrogate over every pair, with gradient; see `everypair.pair_loss_and_grad`.

    Examples
    --------
    >>> pair_loss_and_grad([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0])
    (0.625, array([-1.  ,  0.  ,  0.25,  0.75]))
    """
    return pair_derivatives(scores, labels, **options)[:2]


def pair_derivatives(
    scores: ArrayLike, labels: ArrayLike, **options: Any
) -> tuple[float, NDArray[Any], NDArray[Any]]:
    """Compute value, gradient and diagonal Hessian; see `everypair.pair_derivatives`."""
    every = Pairs(scores, labels, **options)
    total, grad, hess = 0.0, *np.zeros((2, every.scores.size))
    with np.errstate(over="ignore", invalid="ignore"):
        for pos, neg, w in every.blocks():
            value, slope, curvature = every.evaluate(pos, neg)
            total += (w * value).sum()
            grad[pos] -= (w * slope).sum(axis=1)
            grad[neg] += (w * slope).sum(axis=0)
            hess[pos] += (w * curvature).sum(axis=1)
            hess[neg] += (w * curvature).sum(axis=0)
        return float(every.reduced(total)), every.per_row(grad), every.per_row(hess)


def pair_hvp(
    scores: ArrayLike, labels: ArrayLike, vector: ArrayLike, **options: Any
) -> NDArray[Any]:
    """Multiply the Hessian by a vector; see `everypair.pair_hvp`."""
    every = Pairs(scores, labels, **options)
    v = batches.finite_column(vector, "vector", every.scores.size)
    hvp = np.zeros(every.scores.size)
    with np.errstate(over="ignore", invalid="ignore"):
        for pos, neg, w in every.blocks():
            products = w * every.evaluate(pos, neg)[2] * (v[pos][:, None] - v[neg])
            hvp[pos] += products.sum(axis=1)
            hvp[neg] -= products.sum(axis=0)
        return every.per_row(hvp)


def auc(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    average: Literal["pairs", "groups", "rows"] = "pairs",
    **options: Any,
) -> float:
    """Compute the share of pairs in the right order, ties counting half; see `everypair.auc`."""
    every = Pairs(scores, labels, **options)
    if every.weight == 0.0:
        raise ValueError("auc must have both classes in at least one group; got no pair.")
    of_row = group_numbers(every.batch.order, every.batch.offsets)
    of_row = np.zeros(every.scores.size, np.int64) if of_row is None else of_row
    in_order, weight = np.zeros((2, int(of_row.max()) + 1))
    for pos, neg, w in every.blocks():
        in_order[of_row[pos[0]]] += (w * every.is_in_order(pos, neg)).sum()
        weight[of_row[pos[0]]] += w.sum()
    if average == "pairs":
        return float(in_order.sum() / weight.sum())
    counts = weight > 0.0
    shares = np.bincount(of_row, every.batch.weights)[counts] if average == "rows" else None
    return float(np.average(in_order[counts] / weight[counts], weights=shares))


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
    pairs = Pairs(np.concatenate([x, y]), labels, surrogate=surrogate, margin=margin)
    sums = np.zeros(x.size)
    codes = None
    if groups is not None:
        codes = group_codes(groups, groups if other_groups is None else other_groups)
    for rows, all_others, _ in pairs.blocks():
        values = w * pairs.evaluate(rows, all_others)[0]
        if codes is not None:
            values = np.where(codes[0][rows][:, None] == codes[1], values, 0.0)
        if others is None:
            values[np.arange(rows.size), rows] = 0.0
        sums[rows] = values.sum(axis=1)
    return sums.reshape(np.shape(scores))


class Pairs:
    """All pairs of a batch, with their weights divided by ``2**exponent``.

    The exponent is chosen so that neither the largest weight nor a mean over all pairs overflows or
    underflows. The parameters are those of `everypair.pair_loss`.
    """

    def __init__(
        self,
        scores: ArrayLike,
        labels: ArrayLike,
        *,
        surrogate: str | Surrogate = "squared_hinge",
        margin: float | None = None,
        weights: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        reduction: str = "mean",
        pairs: str = "binary",
        censoring: str = "harrell",
        max_fpr: float | None = None,
        min_tpr: float | None = None,
    ) -> None:
        self.batch = batch = batches.batch_from(scores, labels, weights, groups, pairs, censoring)
        rates = pair_options.check_rates(max_fpr, min_tpr, pairs)
        surrogate = surrogates.get(surrogate)
        self._pieces = pieces_of(surrogate)
        self._margin = pair_options.check_margin(margin, surrogate.default_margin)
        self._mean = pair_options.check_reduction(reduction)
        self.scores = x = batch.scores.astype(np.float64)
        w = np.ones(x.size) if batch.weights is None else batch.weights
        target, winner, loser = _targets(batch, labels, w, pairs, censoring)
        rows = np.arange(x.size) if batch.order is None else batch.order
        self._pairs = []  # rows with one target, and the rows of their group that they win against
        for group in [rows] if batch.offsets is None else np.split(rows, batch.offsets[1:-1]):
            if rates is not None:
                pos, neg = group[target[group] > 0], group[target[group] == 0]
                winner[pos] *= kept_share(x[pos], w[pos], 1.0 - rates[1])
                loser[neg] *= kept_share(-x[neg], w[neg], rates[0])
            winners, losers = group[winner[group] > 0.0], group[loser[group] > 0.0]
            for value in np.unique(target[winners]):
                pos, neg = winners[target[winners] == value], losers[target[losers] < value]
                if neg.size:
                    self._pairs.append((pos, neg))
        self._winner, self._loser = winner, loser
        heaviest = [np.frexp([winner[i].max(), loser[j].max()])[1] for i, j in self._pairs]
        self._exponent = max(map(sum, heaviest), default=2) - 2
        if max(np.abs(x).max(), self._margin) > _LARGE:
            self._exponent += 2 * x.size.bit_length()
        self.weight = sum(float(w.sum()) for _, _, w in self.blocks())

    def blocks(self) -> Iterator[tuple[Rows, Rows, Floats]]:
        """Yield rows of positives, rows of negatives and the scaled weights of their pairs."""
        for pos, neg in self._pairs:
            (w_pos, e_pos), (w_neg, e_neg) = np.frexp(self._winner[pos]), np.frexp(self._loser[neg])
            largest = e_neg.max()
            of_neg = np.ldexp(w_neg, e_neg - largest)
            of_pos = np.ldexp(w_pos, e_pos + largest - self._exponent)[:, None]
            height = max(1, _PAIRS_PER_BLOCK // neg.size)
            for i in range(0, pos.size, height):
                yield pos[i : i + height], neg, of_pos[i : i + height] * of_neg

    def evaluate(self, pos: Rows, neg: Rows) -> tuple[Floats, ...]:
        """Return value, slope and curvature of the surrogate, each of shape (n_pos, n_neg)."""
        t = self._shortfall_minus(0.0, pos, neg)
        results: tuple[Floats, ...] = (np.zeros_like(t),) * 3
        for knot, formula in self._pieces:
            above = knot is None or (self._shortfall_minus(knot, pos, neg) if knot else t) > 0.0
            results = tuple(np.where(above, a, b) for a, b in zip(formula(t), results, strict=True))
        return results

    def is_in_order(self, pos: Rows, neg: Rows) -> Floats:
        """Return 1 for the pairs in the right order, and one half for ties."""
        s_pos, s_neg = self.scores[pos][:, None], self.scores[neg]
        in_order: Floats = (s_pos > s_neg) + 0.5 * (s_pos == s_neg)
        return in_order

    def _shortfall_minus(self, knot: float, pos: Rows, neg: Rows) -> Floats:
        """Return ``margin - (s_pos - s_neg) - knot`` with the sign that it has without rounding."""
        s_pos, s_neg = self.scores[pos], self.scores[neg]
        difference = self._margin - (s_pos[:, None] - s_neg) - knot
        # Rounding changes the sign of small results only. They are added up again exactly.
        sizes = np.abs(s_pos).max(), np.abs(s_neg).max(), self._margin, abs(knot)
        rounding = sum(4 * sys.float_info.epsilon * size for size in sizes)
        i, j = np.nonzero(np.abs(difference) <= rounding)
        parts = zip(s_neg[j], -s_pos[i], repeat(self._margin), repeat(-knot), strict=False)
        difference[i, j] = [math.fsum(numbers) for numbers in parts]
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


def _targets(
    batch: batches.Batch, labels: Any, w: Floats, pairs: str, censoring: str
) -> tuple[NDArray[Any], Floats, Floats]:
    """Return numbers of which the larger one wins, and the weights of rows that win and lose."""
    if pairs == "binary":
        return batches.positives(batch), w.copy(), w.copy()
    if pairs == "ordered":
        return ranked.target_from(labels), w, w
    times, events = survival.survival_from(labels)
    winner = w * events
    if censoring == "uno":
        for i in np.flatnonzero(events):
            g = 1.0
            for t in np.unique(times[(times <= times[i]) & ~events]):
                censored = w[(times == t) & ~events].sum()
                later = w[times > t].sum()
                g *= later / (later + censored) if censored else 1.0
            winner[i] = w[i] / g**2 if g else 0.0
    # Earlier times win, and at one time events win against censored rows.
    by_time = np.unique(np.column_stack([times, ~events]), axis=0, return_inverse=True)[1]
    return -by_time.reshape(-1), winner, w


def kept_share(ascending: Floats, w: Floats, share: float) -> Floats:
    """Return which share of each row is among the lowest `share` of all weight; ties alike.

    A share of 0 keeps the lowest rows of positive weight.
    """
    shares = np.zeros_like(w)
    for value in np.unique(ascending[w > 0.0]):
        is_tied, before = ascending == value, w[ascending < value].sum()
        if share == 0.0:
            shares[is_tied] = before == 0.0
        else:
            shares[is_tied] = np.clip((share * w.sum() - before) / w[is_tied].sum(), 0.0, 1.0)
    return shares


def _softplus(u: Floats) -> Floats:
    """Return log(1 + exp(u))."""
    softplus: Floats = np.maximum(u, 0.0) + np.log1p(np.exp(-np.abs(u)))
    return softplus


def _sigmoid(u: Floats) -> Floats:
    """Return 1 / (1 + exp(-u))."""
    x = np.exp(-np.abs(u))
    sigmoid: Floats = np.where(u > 0.0, 1.0, x) / (1.0 + x)
    return sigmoid


# A surrogate is a list of pieces (knot, formula), in the order of their knots. The formula gives
# the value and the first two derivatives at shortfalls above the knot (None: everywhere) and up to
# the next knot. Below the first knot all three are 0.
POLYNOMIALS: dict[Surrogate, list[tuple[float | None, Formula]]] = {
    surrogates.SQUARE: [(None, lambda t: (t**2, 2 * t, 2.0))],
    surrogates.SQUARED_HINGE: [(0.0, lambda t: (t**2, 2 * t, 2.0))],
    surrogates.LINEAR_HINGE: [(0.0, lambda t: (t, 1.0, 0.0))],
    surrogates.HUBER_HINGE: [
        (0.0, lambda t: (t**2 / 2, t, 1.0)),
        (1.0, lambda t: (t - 0.5, 1.0, 0.0)),
    ],
}

# The smooth surrogates as functions of u = t / temperature, which apply everywhere.
SMOOTH: dict[str, Formula] = {
    "logistic": lambda u: (_softplus(u), _sigmoid(u), _sigmoid(u) * _sigmoid(-u)),
    "sigmoid": lambda u: (
        _sigmoid(u),
        _sigmoid(u) * _sigmoid(-u),
        -_sigmoid(u) * _sigmoid(-u) * np.tanh(u / 2),
    ),
    "exponential": lambda u: (np.exp(u), np.exp(u), np.exp(u)),
    "squared_softplus": lambda u: (
        _softplus(u) ** 2,
        2 * _softplus(u) * _sigmoid(u),
        2 * _sigmoid(u) ** 2 + 2 * _softplus(u) * _sigmoid(u) * _sigmoid(-u),
    ),
}


def pieces_of(surrogate: Surrogate) -> list[tuple[float | None, Formula]]:
    """Return the formulas between knots, each with the knot above which it applies.

    Built-in surrogates, at any temperature, have the formulas of this module. Others have no
    formula but their terms.
    """
    if surrogate in POLYNOMIALS:
        return POLYNOMIALS[surrogate]
    rates = [t.rate for t in surrogate.terms if not isinstance(t, surrogates.Term)]
    if not rates:
        return surrogates.pieces(surrogate)
    for name, formula in SMOOTH.items():
        if surrogates.get(name).scaled(rates[0]).terms == surrogate.terms:
            return [(None, partial(_at_rate, rates[0], formula))]
    return [(None, lambda t: (surrogate.value(t), surrogate.slope(t), surrogate.curvature(t)))]


def _at_rate(rate: float, formula: Formula, t: Floats) -> tuple[Any, Any, Any]:
    value, slope, curvature = formula(rate * t)
    return value, rate * slope, rate * rate * curvature
