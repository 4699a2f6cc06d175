"""All pairs of a batch, one block after the other: what the double sums of `naive` add up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair import _formulas, surrogates
from everypair.inputs import batches, ordered, pair_options, survival
from everypair.surrogates import Floats, Surrogate

Rows = NDArray[np.intp]

_PAIRS_PER_BLOCK = 1 << 16
_LARGE = 1e150  # sums of larger shortfalls, or of their squares, may overflow


class Pairs:
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
        pairs: str = "binary",
        censoring: str = "harrell",
        max_fpr: float | None = None,
        min_tpr: float | None = None,
    ) -> None:
        self.batch = batch = batches.batch_from(scores, labels, weights, groups, pairs, censoring)
        known = surrogates.get(surrogate)
        self._pieces = _formulas.pieces_of(known)
        self._margin = pair_options.check_margin(margin, known.default_margin)
        self._mean = pair_options.check_reduction(reduction)
        self.scores = batch.scores.astype(np.float64)
        n = self.scores.size
        w = np.ones(n) if batch.weights is None else batch.weights
        rows = np.arange(n) if batch.order is None else batch.order
        positive = batches.positives(batch) if pairs == "binary" else np.zeros(n, bool)
        winner, opponents = _opponents(labels, positive, w, pairs, censoring)
        self._groups = []
        for group in [rows] if batch.offsets is None else np.split(rows, batch.offsets[1:-1]):
            w_pos, w_neg = winner.copy(), w.copy()
            if max_fpr is not None or min_tpr is not None:
                pos, neg = group[positive[group]], group[~positive[group]]
                w_pos[pos] *= _hardest(self.scores[pos], w[pos], 1.0 - (min_tpr or 0.0))
                w_neg[neg] *= _hardest(
                    -self.scores[neg], w[neg], 1.0 if max_fpr is None else max_fpr
                )
            for of_winner, is_loser in opponents(group):
                pos = of_winner[w_pos[of_winner] > 0.0]
                neg = group[is_loser & (w_neg[group] > 0.0)]
                if pos.size and neg.size:
                    self._groups.append((pos, neg, *_scaled(w_pos[pos]), *_scaled(w_neg[neg])))
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


def _opponents(
    labels: Any, positive: NDArray[np.bool_], w: Floats, pairs: str, censoring: str
) -> tuple[Floats, Callable[[Rows], Iterator[tuple[Rows, NDArray[np.bool_]]]]]:
    """Return the weights of rows as winners, and who loses against whom inside a group.

    The function that is returned takes the rows of a group. It yields rows that win against the
    same rows of the group, and which ones those are.
    """
    if pairs == "binary":
        return w, lambda group: iter([(group[positive[group]], ~positive[group])])
    if pairs == "ordered":
        y = ordered.target_from(labels)

        def by_target(group: Rows) -> Iterator[tuple[Rows, NDArray[np.bool_]]]:
            for value in np.unique(y[group]):
                yield group[y[group] == value], y[group] < value

        return w, by_target
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

    def by_time(group: Rows) -> Iterator[tuple[Rows, NDArray[np.bool_]]]:
        t, event = times[group], events[group]
        for time in np.unique(t[event]):
            yield group[event & (t == time)], (t > time) | ((t == time) & ~event)

    return winner, by_time


def _hardest(ascending: Floats, w: Floats, share: float) -> Floats:
    """Return which share of each row is among the lowest `share` of all weight; ties alike.

    A share of 0 keeps the lowest rows of positive weight.
    """
    kept = np.zeros_like(w)
    for value in np.unique(ascending[w > 0.0]):
        tied, before = ascending == value, w[ascending < value].sum()
        if share == 0.0:
            kept[tied] = before == 0.0
        else:
            kept[tied] = np.clip((share * w.sum() - before) / w[tied].sum(), 0.0, 1.0)
    return kept


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
