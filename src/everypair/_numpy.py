"""Moments of one class below a point of the other, in NumPy.

Every result is a contraction of three sums over the sources `j` that are active for a query at x:

    M0 = sum w_j          M1 = sum w_j (x - x_j)          M2 = sum w_j (x - x_j)^2

Sources are sorted, and their sums are kept relative to the latest source x_i,

    W_i = W_{i-1} + w_i
    T_i = T_{i-1} + gap W_{i-1}
    Q_i = Q_{i-1} + gap (2 T_{i-1} + gap W_{i-1})

with gap = x_i - x_{i-1}. No addend is negative, so nothing cancels, whatever the offset of the
scores (the paper's a x^2 + b x + c loses a digit for every digit of the offset). A query then moves
the sums from x_i to its own place. Each class is the sources once and the queries once, on the
mirrored axis; groups are laid one after the other, and sums start anew at each.

Several terms may grow against each other (far from its knots the Huber hinge is a difference of two
squares), which costs as many digits as the scores are spread over: `long double` pays for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from everypair._sorted import (
    PairClass,
    PrefixSums,
    by_group,
    classes,
    lowest,
    mirrored,
    prefix_sums,
    ranks,
    restarting_cumsum,
    sorted_by_score,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Long = NDArray[np.longdouble]
    Floats = NDArray[np.float64]
    Index = NDArray[np.intp]
    KnotTerm = tuple[float, float, float, float, bool]

__all__ = ["concordance", "evaluate"]


class _Totals:
    """What the terms add up to, row by row, before it is cast back."""

    def __init__(self, n: int, *, grad: bool, hess: bool, hvp: bool) -> None:
        self.value = np.longdouble(0.0)
        self.grad = np.zeros(n, np.longdouble) if grad else None
        self.hess = np.zeros(n, np.longdouble) if hess else None
        self.hvp = np.zeros(n, np.longdouble) if hvp else None


def evaluate(
    scores: NDArray[Any],
    positive: NDArray[np.bool_],
    weights: Floats | None,
    offsets: NDArray[np.int64] | None,
    vector: Floats | None,
    terms: tuple[KnotTerm, ...],
    *,
    mean: bool,
    grad: bool,
    hess: bool,
) -> tuple[float, float, Floats | None, Floats | None, Floats | None]:
    """Return value, pair weight, gradient, diagonal Hessian and Hessian times vector.

    Rows of a group are contiguous, between `offsets`. What was not asked for is None.
    """
    # Scores that are huge, or hugely apart, may overflow: inf is then the answer, not a warning.
    with np.errstate(all="ignore"):
        pos, neg, n_groups = classes(scores, positive, weights, offsets, vector)
        totals = _Totals(scores.shape[0], grad=grad, hess=hess, hvp=vector is not None)
        pair_weight = (by_group(pos.w, pos, n_groups) * by_group(neg.w, neg, n_groups)).sum()
        if pair_weight > 0.0:
            _add_terms(totals, pos, neg, n_groups, terms)
        scale = pair_weight if mean and pair_weight > 0.0 else np.longdouble(1.0)
        return (
            float(totals.value / scale),
            float(pair_weight),
            _scaled(totals.grad, scale),
            _scaled(totals.hess, scale),
            _scaled(totals.hvp, scale),
        )


def concordance(
    scores: NDArray[Any],
    positive: NDArray[np.bool_],
    weights: Floats | None,
    offsets: NDArray[np.int64] | None,
) -> tuple[float, float]:
    """Return the weight of the pairs in the right order, ties half, and of all pairs."""
    with np.errstate(all="ignore"):
        pos, neg, n_groups = classes(scores, positive, weights, offsets, None)
        pair_weight = (by_group(pos.w, pos, n_groups) * by_group(neg.w, neg, n_groups)).sum()
        if pair_weight == 0.0:
            return 0.0, 0.0
        neg, pos = sorted_by_score(neg), sorted_by_score(pos)
        below = restarting_cumsum(neg.w, neg.group)
        start = np.searchsorted(neg.group, pos.group)
        # Raw scores are compared: any arithmetic on them could make or break a tie.
        twice = np.longdouble(0.0)
        for rank in (
            ranks(neg.x, neg.group, pos.x, pos.group, ties=False),
            ranks(neg.x, neg.group, pos.x, pos.group, ties=True),
        ):
            live = rank > start
            twice += (pos.w[live] * below[rank[live] - 1]).sum()
        return float(twice / 2), float(pair_weight)


def _add_terms(
    totals: _Totals,
    pos: PairClass,
    neg: PairClass,
    n_groups: int,
    terms: tuple[KnotTerm, ...],
) -> None:
    # Ranks are found on positions relative to the group's lowest positive: a shift added to the raw
    # score would drown in a large offset.
    origin = lowest(pos, n_groups)
    hinges = [term for term in terms if term[-1]]
    for term in terms:
        if not term[-1]:
            _add_everywhere(totals, pos, neg, origin, term)
    if not hinges:
        return
    pos, neg = sorted_by_score(pos), sorted_by_score(neg)
    key_pos, key_neg = pos.x - origin[pos.group], neg.x - origin[neg.group]
    below = prefix_sums(pos, second=True, vector=totals.hvp is not None)
    for term in hinges:
        rank = ranks(key_pos, pos.group, key_neg + term[0], neg.group, ties=False)
        _add_truncated(totals, pos, below, neg, rank, term)
    if totals.grad is None and totals.hess is None and totals.hvp is None:
        return
    # Mirrored, the negatives above a positive are the sources below a query.
    mirror_pos, mirror_neg = mirrored(pos, n_groups), mirrored(neg, n_groups)
    below = prefix_sums(mirror_neg, second=False, vector=totals.hvp is not None)
    for term in hinges:
        keys = -(key_neg + term[0])[::-1], -key_pos[::-1]
        rank = ranks(keys[0], mirror_neg.group, keys[1], mirror_pos.group, ties=False)
        _add_truncated(totals, mirror_neg, below, mirror_pos, rank, term, mirror=True)


def _add_truncated(
    totals: _Totals,
    sources: PairClass,
    below: PrefixSums,
    queries: PairClass,
    rank: Index,
    term: KnotTerm,
    *,
    mirror: bool = False,
) -> None:
    """Add one term for the queries; the sources before a query's `rank` are active in its group.

    On the mirrored axis the queries are positives: the loss falls as their scores rise, and its
    value has been counted from the negatives' side.
    """
    shift, b0, b1, b2, _ = term
    live = rank > np.searchsorted(sources.group, queries.group)
    latest = rank[live] - 1
    rows, w = queries.rows[live], queries.w[live]
    mass = below.mass[latest]
    # Raw scores are subtracted before the shift is added: close ones differ without rounding.
    step = queries.x[live].astype(np.longdouble) - below.x[latest] + shift
    first = below.first[latest] + mass * step
    if below.second is not None:
        second = below.second[latest] + step * (2 * below.first[latest] + step * mass)
        totals.value += (w * (b0 * mass + b1 * first + b2 * second)).sum()
    if totals.grad is not None:
        slope = w * (b1 * mass + 2 * b2 * first)
        totals.grad[rows] += -slope if mirror else slope
    if totals.hess is not None:
        totals.hess[rows] += 2 * b2 * w * mass
    if totals.hvp is not None and below.vector is not None:
        totals.hvp[rows] += 2 * b2 * w * (queries.z[live] * mass - below.vector[latest])


def _add_everywhere(
    totals: _Totals,
    pos: PairClass,
    neg: PairClass,
    origin: Floats,
    term: KnotTerm,
) -> None:
    """Add a term without a knot in O(n): it needs only the mean and the spread of each class."""
    shift, b0, b1, b2, _ = term
    n_groups = origin.shape[0]
    mass, centre, spread, offset = [], [], [], []
    for c in (pos, neg):
        x = c.x.astype(np.longdouble) - origin[c.group]
        mass.append(by_group(c.w, c, n_groups))
        some = np.where(mass[-1] > 0.0, mass[-1], 1.0)
        centre.append(by_group(c.w * x, c, n_groups) / some)
        offset.append(x - centre[-1][c.group])
        spread.append(by_group(c.w * offset[-1] ** 2, c, n_groups))
    apart = centre[1] - centre[0] + shift
    totals.value += (mass[0] * mass[1] * (b0 + apart * (b1 + apart * b2))).sum()
    totals.value += b2 * (mass[0] * spread[1] + mass[1] * spread[0]).sum()
    for sign, this, other in ((-1.0, pos, 0), (1.0, neg, 1)):
        g, across = this.group, 1 - other
        opposite = mass[across][g]
        if totals.grad is not None:
            d = apart[g] + sign * offset[other]
            totals.grad[this.rows] += sign * this.w * opposite * (b1 + 2 * b2 * d)
        if totals.hess is not None:
            totals.hess[this.rows] += 2 * b2 * this.w * opposite
        if totals.hvp is not None:
            c = neg if across else pos
            total = by_group(c.w * c.z, c, n_groups)[g]
            totals.hvp[this.rows] += 2 * b2 * this.w * (this.z * opposite - total)


def _scaled(values: Long | None, scale: np.longdouble) -> Floats | None:
    return None if values is None else (values / scale).astype(np.float64)
