"""Sums over all pairs, by array operations: the one engine of pair losses and of row sums.

A batch has two classes, and for each of its rows the engine sums a surrogate, or a derivative of
it, over the rows of the other class. With r_i these sums for the weights w, and r'_i and r''_i
those of the derivatives in d = s_neg + shift - s_pos,

    value     sum over the negatives of w_i r_i
    gradient  w_i r'_i for negatives, and -w_i r'_i for positives
    Hessian   w_i r''_i on the diagonal; times a vector z, w_i (z_i r''_i - r''_i with weights w z)

`row_sums` returns such sums as they are. A surrogate has up to four kinds of terms: truncated
polynomials (`sorted_moments`, O(n log n)), polynomials without a knot (`class_moments`, O(n)),
smooth terms (`smooth_terms`, on `exponential_sums`) and exponential ones (`exponential_terms`).

No value is read back and no shape depends on a value, so an accelerator never waits, and JAX can
trace all of it.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from everypair.arrays.class_moments import ClassMoments
from everypair.arrays.double_double import Number
from everypair.arrays.exponential_terms import ExponentialTerm
from everypair.arrays.line import Line
from everypair.arrays.rows import PairSums, Targets, prepare, times_powers
from everypair.arrays.smooth_terms import SmoothTerm
from everypair.arrays.sorted_moments import SortedMoments
from everypair.surrogates import KnotTerm

if TYPE_CHECKING:
    from everypair.arrays.double_double import Arrays
    from everypair.arrays.rows import Part, Rows, ScaledRows
    from everypair.arrays.terms import Kinds
    from everypair.surrogates import PairTerm

    Array = Any


def needs_low_parts(
    terms: tuple[PairTerm, ...], *, wide: bool, weighted: bool, grouped: bool
) -> bool:
    """Return whether plain float64 sums would lose digits that the scores have.

    `wide` says that scores are float64. Several polynomials can cancel: the lost digits grow with
    the spread of the scores. Groups share one running sum, in which heavy groups would round away
    light ones.
    """
    n_polynomials = sum(isinstance(term, KnotTerm) for term in terms)
    return wide or n_polynomials > 1 or (weighted and grouped)


def evaluate(
    xp: Arrays,
    scores: Array,
    positive: Array,
    weights: Array,
    groups: Array,
    vector: Array,
    terms: Kinds,
    *,
    mean: Any,
    grad: bool,
    hess: bool,
) -> PairSums:
    """Return the sum of the terms over all pairs, and its derivatives.

    Parameters
    ----------
    xp : Arrays
        The operations of the library that the arrays belong to.
    scores : (..., n) floating
        In the type that sums are computed in. Rows are in the last dimension; the others hold
        batches that have no pairs in common.
    positive : (..., n) bool
    weights, groups, vector : (..., n) or None
    terms : Kinds
        What `everypair.arrays.terms.by_kind` returns.
    mean : bool or array
        Whether to divide by the weight of all pairs.
    grad, hess : bool
        What to compute besides the value. Only the Hessian times `vector`, and no value, is
        computed where there is a vector and no gradient is asked for.
    """
    batch = prepare(xp, scores, positive, weights, groups, vector)
    rows, z = batch.rows, batch.z
    parts = parts_of(xp, rows, terms)
    orders = [1] * grad + [2] * (hess or vector is not None)
    value = xp.zeros_like(rows.x[..., :1])
    if grad or vector is None:
        losses, sums = zip(*(part.loss(orders) for part in parts), strict=True)
        value = reduce(xp.plus, losses).high
    else:
        sums = tuple(part.sums(None, orders, Targets()) for part in parts)
    total = dict(zip(orders, (reduce(xp.plus, of) for of in zip(*sums, strict=True)), strict=True))
    averaged = (batch.pair_weight > 0.0) & mean
    divisor = xp.where(averaged, batch.pair_weight, 1.0)
    scale = xp.where(averaged, 1.0, batch.scale)
    row_scale = xp.where(averaged, batch.row_scale / batch.scale, batch.row_scale)
    is_finite = xp.isfinite(scores).all(-1)[..., None]

    def finished(a: Array) -> Array:
        # Return NaN if any score is not finite, even one without pairs.
        return xp.where(is_finite, xp.where(a == 0.0, 0.0, a), float("nan"))

    def in_batch(a: Array, unit: Array = None) -> Array:
        a = (a if rows.w is None else rows.w * a) / divisor
        if unit is None:
            a = a * row_scale * row_scale
        else:
            a = times_powers(xp, a, row_scale, row_scale, unit)
        return finished(a) if batch.order is None else xp.scatter(finished(a), batch.order)

    value = value / divisor * scale * scale
    value = xp.where(value != value, float("inf"), value)  # parts of the sum overflow
    product = None
    if z is not None:
        along = z if rows.w is None else xp.times(Number(rows.w), z)
        partner_sums = reduce(xp.plus, (part.sums(along, [2], Targets())[0] for part in parts))
        product = in_batch(xp.minus(xp.times(z, total[2]), partner_sums).high, batch.unit)
    return PairSums(
        finished(value)[..., 0],
        _true_pair_weight(xp, batch)[..., 0],
        in_batch(xp.where(rows.positive, -total[1].high, total[1].high)) if grad else None,
        in_batch(total[2].high) if hess else None,
        product,
    )


def parts_of(xp: Arrays, rows: Rows, terms: Kinds) -> list[Part]:
    """Prepare the sums of all terms."""
    parts: list[Part] = []
    line = None
    if terms.truncated is not None:
        line = Line(xp, rows, terms.truncated.shift)
        parts.append(SortedMoments(rows, terms.truncated, line))
    if terms.everywhere is not None:
        parts.append(ClassMoments(xp, rows, terms.everywhere))
    if terms.below is not None:
        below = Line(xp, rows, terms.below.shift)
        parts.append(SortedMoments(rows, terms.below, below, below=True))
    for smooth in terms.smooth:
        # Most smooth terms complete a truncated one, whose line they share. Shifts that are traced
        # cannot be compared.
        is_shared = (
            terms.truncated is not None
            and type(smooth.shift) is tuple
            and smooth.shift == terms.truncated.shift
        )
        own_line = line if is_shared and line is not None else Line(xp, rows, smooth.shift)
        parts.append(SmoothTerm(rows, smooth, own_line))
    parts += [ExponentialTerm(xp, rows, term) for term in terms.exponential]
    return parts


def concordance(
    xp: Arrays, scores: Array, positive: Array, weights: Array, groups: Array
) -> tuple[Array, Array]:
    """Return the weight of the pairs in the right order, ties half, and that of all pairs.

    Both are over the same power of two.
    """
    batch = prepare(xp, scores, positive, weights, groups, None)
    rows = batch.rows
    # Scores are compared as they are. Negatives come first among ties, then positives do.
    rank = xp.as_uint8(xp.concatenate([rows.positive[None], ~rows.positive[None]]))
    keys = (rank, rows.x) if groups is None else (rank, rows.x, rows.groups)
    order = xp.order([xp.broadcast(key, rank.shape) for key in keys])

    def in_order(a: Array) -> Array:
        return xp.gather(xp.broadcast(a, order.shape), order)

    is_pos = in_order(rows.positive)
    w = in_order(xp.zeros_like(rows.x) + 1.0 if rows.w is None else rows.w)
    below = xp.prefix(Number(xp.where(is_pos, 0.0, w)), rows.runs, counts=rows.w is None)
    of_rows = xp.times(Number(xp.where(is_pos, w, 0.0)), below)
    right = xp.sum_of_terms(rows.runs.sum_of_rows(xp, of_rows))
    return right.high[..., 0] / 2.0, batch.pair_weight[..., 0]


def _true_pair_weight(xp: Arrays, batch: ScaledRows) -> Array:
    """Return the pair weight on the caller's scale; it neither overflows nor becomes zero."""
    true = batch.pair_weight * batch.scale * batch.scale
    smallest, largest = xp.float_range
    true = xp.where(true > largest, largest, xp.where(true < smallest, smallest, true))
    return xp.where(batch.pair_weight > 0.0, true, batch.pair_weight)
