"""Loss, gradient, diagonal Hessian and Hessian-vector product of a batch, by array operations.

A surrogate is a sum of polynomials in the distance d of a pair, so every result is a contraction of
its coefficients with moments of the pairs: sums of 1, d and d^2 over all pairs, and of 1 and d over
the pairs of each row. `sorted_moments` has those of terms with a knot in O(n log n), and
`class_moments` those of terms without one in O(n).

No value is read back and no shape depends on a value, so an accelerator never waits, and JAX can
trace all of it.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from everypair.arrays.class_moments import ClassMoments
from everypair.arrays.double_double import Number, each, two_sum
from everypair.arrays.runs import Runs
from everypair.arrays.sorted_moments import SortedMoments

if TYPE_CHECKING:
    from collections.abc import Iterable

    from everypair.arrays.double_double import Arrays
    from everypair.arrays.terms import Terms

    Array = Any

__all__ = ["PairSums", "Rows", "concordance", "evaluate", "needs_low_parts"]


class PairSums(NamedTuple):
    """Results for a batch, in the fields of `everypair._dispatch.Result`.

    `value` and `pair_weight` have the shape of the batch without its rows, the others have the
    shape of the batch. They are None where they were not asked for.
    """

    value: Array
    pair_weight: Array
    grad: Array
    hess: Array
    hvp: Array


class Rows(NamedTuple):
    """The rows of a batch, sorted by group.

    Attributes
    ----------
    x, positive : array
        Scores, and whether the row is positive.
    w : array or None
        Weights over powers of two, so that the largest one of each class is near 1.
    z : Number or None
        The vector of a Hessian-vector product.
    groups : array or None
    runs : Runs
        The rows of each group.
    masses : list of Number
        The weight of the positives and of the negatives in the group of each row.
    pair_weight : array
        The weight of all pairs, from the weights `w`.
    scale : array
        The weights `w` of a pair times the square of this are those of the caller.
    order : array or None
        What sorted the rows; None without groups.
    """

    x: Array
    positive: Array
    w: Array
    z: Number | None
    groups: Array
    runs: Runs
    masses: list[Number]
    pair_weight: Array
    scale: Array
    order: Array


def needs_low_parts(*, wide: bool, n_terms: int, weighted: bool, grouped: bool) -> bool:
    """Return whether plain float64 sums would lose digits that the scores have.

    `wide` says that scores are float64. Several terms may grow against each other and lose as many
    digits as the scores are spread over. Groups share one running sum, in which heavy groups would
    round away light ones.
    """
    return wide or n_terms > 1 or (weighted and grouped)


def evaluate(
    xp: Arrays,
    scores: Array,
    positive: Array,
    weights: Array,
    groups: Array,
    vector: Array,
    terms: tuple[Terms | None, Terms | None],
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
    terms : pair of Terms or None
        What `everypair.arrays.terms.split` returns.
    mean : bool or array
        Whether to divide by the weight of all pairs.
    grad, hess : bool
        What to compute besides the value.
    """
    rows = _rows(xp, scores, positive, weights, groups, vector)
    asked = _Sums(grad or vector is None, grad, hess, vector is not None)
    found: list[_Sums] = []
    hinged, everywhere = terms
    if hinged is not None:
        found.append(_contracted(xp, SortedMoments(xp, rows, hinged), hinged, rows.z, asked))
    if everywhere is not None:
        found.append(_contracted(xp, ClassMoments(xp, rows, everywhere), everywhere, rows.z, asked))
    averaged = (rows.pair_weight > 0.0) & mean
    divisor = xp.where(averaged, rows.pair_weight, 1.0)
    scale = xp.where(averaged, 1.0, rows.scale)
    finite = xp.isfinite(scores).all(-1)[..., None]
    sums = _Sums(*(_sum(xp, parts) for parts in zip(*found, strict=True)))

    def finished(a: Number | None, zeros: Array) -> Array:
        out = zeros if a is None else a.high if a.low is None else a.high + a.low
        out = out / divisor * scale * scale
        # A score that is not finite may be in no pair; it makes every result NaN all the same.
        return xp.where(finite, xp.where(out == 0.0, 0.0, out), float("nan"))

    def per_row(a: Number | None) -> Array:
        out = finished(a, xp.zeros_like(rows.x))
        return out if rows.order is None else xp.scatter(out, rows.order)

    return PairSums(
        finished(sums.value, xp.zeros_like(rows.x[..., :1]))[..., 0],
        _true_pair_weight(xp, rows)[..., 0],
        per_row(sums.grad) if grad else None,
        per_row(sums.hess) if hess else None,
        per_row(sums.hvp) if asked.hvp else None,
    )


def concordance(
    xp: Arrays, scores: Array, positive: Array, weights: Array, groups: Array
) -> tuple[Array, Array]:
    """Return the weight of the pairs in the right order, ties half, and that of all pairs.

    Both are over the same power of two.
    """
    rows = _rows(xp, scores, positive, weights, groups, None)
    # Scores are compared as they are. Negatives come first among ties, then positives do.
    rank = xp.as_uint8(xp.concatenate([rows.positive[None], ~rows.positive[None]]))
    keys = [rank, xp.broadcast(rows.x, rank.shape)]
    if groups is not None:
        keys.append(xp.broadcast(rows.groups, rank.shape))
    order = xp.order(keys)

    def in_order(a: Array) -> Array:
        return xp.gather(xp.broadcast(a, order.shape), order)

    is_pos = in_order(rows.positive)
    w = xp.zeros_like(in_order(rows.x)) + 1.0 if rows.w is None else in_order(rows.w)
    below = xp.prefix(Number(xp.where(is_pos, 0.0, w)), rows.runs, counts=rows.w is None)
    right = xp.sum_of_terms(xp.total(xp.times(Number(xp.where(is_pos, w, 0.0)), below)))
    return right.high[..., 0] / 2.0, rows.pair_weight[..., 0]


class _Sums(NamedTuple):
    """Sums over the terms of one kind; None where they are zero or not asked for."""

    value: Any
    grad: Any
    hess: Any
    hvp: Any


def _contracted(
    xp: Arrays,
    moments: SortedMoments | ClassMoments,
    terms: Terms,
    z: Number | None,
    asked: _Sums,
) -> _Sums:
    """Contract the moments of pairs with the coefficients of the terms."""
    b0, b1, b2 = terms.b0, terms.b1, terms.b2

    def summed(a: Number | None, *, signed: bool) -> Number | None:
        """Return the sum over the terms of each row's share, in the order of the batch."""
        if a is None:
            return None
        a = a if moments.w is None else xp.times(moments.w, a)
        if signed:
            a = each(lambda part: xp.where(moments.is_upper, part, -part), a)
        return xp.sum_of_terms(moments.rows(a))

    value = grad = hess = hvp = None
    if asked.value:
        value = xp.combined(
            (b0, moments.pair_weight), (b1, moments.pair_distance), (b2, moments.pair_square)
        )
        value = _sum(xp, [None if a is None else xp.sum_of_terms(a) for a in (value, moments.beyond())])
    if asked.grad:
        grad = xp.combined((b1, lambda: moments.mass), (b2, lambda: _twice(moments.first)))
        grad = summed(grad, signed=True)
    if asked.hess and b2 is not None:
        hess = summed(xp.scaled(_twice(moments.mass), b2), signed=False)
    if asked.hvp and b2 is not None:
        own, others = moments.along(z)
        pull = _twice(xp.minus(xp.times(own, moments.mass), others))
        hvp = summed(xp.scaled(pull, b2), signed=False)
    return _Sums(value, grad, hess, hvp)


def _rows(
    xp: Arrays, scores: Array, positive: Array, weights: Array, groups: Array, vector: Array
) -> Rows:
    """Sort a batch by group and scale its weights."""
    x, w, z, order = scores, weights, vector, None
    runs = Runs(xp, xp.row_numbers(x))
    if groups is not None:
        order = xp.order([groups])
        x, positive, groups, w, z = (
            None if a is None else xp.gather(a, order) for a in (x, positive, groups, w, z)
        )
        runs = Runs(xp, runs.rows, *xp.bounds(groups))
    scale = xp.zeros_like(x[..., :1]) + 1.0
    if w is not None:
        roots = [_root(xp, xp.max(xp.where(of_class, w, 0.0))) for of_class in (positive, ~positive)]
        root = xp.where(positive, *roots)
        w, scale = w / root / root, roots[0] * roots[1]
    ones = Number(xp.zeros_like(x) + 1.0 if w is None else w)
    masses = runs.class_totals(ones, positive, counts=w is None)
    pairs = masses[0].high * masses[1].high
    if w is not None:
        # Rows that are in no pair must not leave rounding errors in sums that others share.
        w = xp.where(pairs > 0.0, w, 0.0)
        x = xp.where(w > 0.0, x, 0.0)
    of_vector = None
    if z is not None:
        # The Hessian maps constants to zero. Without the common part less is left to cancel.
        lowest = -xp.max(-z if w is None else xp.where(w > 0.0, -z, -float("inf")))
        lowest = xp.where(xp.isfinite(lowest), lowest, 0.0)
        of_vector = two_sum(z if w is None else xp.where(w > 0.0, z, lowest), -lowest)
    pair_weight = runs.sum_of_groups(Number(pairs)).high
    return Rows(x, positive, w, of_vector, groups, runs, masses, pair_weight, scale, order)


def _root(xp: Arrays, largest: Array) -> Array:
    """Return the power of two next below the square root of the largest weight; 1 for zero."""
    root = xp.keep_bits(xp.where(largest > 0.0, largest, 1.0) ** 0.5, xp.mantissa_bits)
    return root


def _true_pair_weight(xp: Arrays, rows: Rows) -> Array:
    """Return the pair weight on the caller's scale, within the range of floats if there is one."""
    true = rows.pair_weight * rows.scale * rows.scale
    smallest, largest = xp.float_range
    true = xp.where(true > largest, largest, xp.where(true < smallest, smallest, true))
    return xp.where(rows.pair_weight > 0.0, true, rows.pair_weight)


def _sum(xp: Arrays, parts: Iterable[Number | None]) -> Number | None:
    there = [part for part in parts if part is not None]
    return reduce(xp.plus, there) if there else None


def _twice(a: Number) -> Number:
    return each(lambda part: 2.0 * part, a)
