"""Loss, gradient, diagonal Hessian and Hessian-vector product of a batch, by array operations.

A surrogate is a sum of polynomials in the distance d of a pair, so every result is a contraction of
its coefficients with moments of the pairs: sums of 1, d and d^2 over all pairs, and of 1 and d over
the pairs of each row. `sorted_moments` has those of terms with a knot in O(n log n), and
`class_moments` those of terms without one in O(n). Terms that are no polynomials are summed by
`smooth_terms`.

No value is read back and no shape depends on a value, so an accelerator never waits, and JAX can
trace all of it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from everypair.arrays.class_moments import ClassMoments
from everypair.arrays.double_double import Number, each, twice
from everypair.arrays.rows import PairSums, Rows, prepare, times_powers
from everypair.arrays.smooth_terms import exponential_sums, smooth_sums
from everypair.arrays.sorted_moments import SortedMoments

if TYPE_CHECKING:
    from collections.abc import Callable

    from everypair.arrays.double_double import Arrays
    from everypair.arrays.terms import Kinds, Terms

    Array = Any


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
    rows = prepare(xp, scores, positive, weights, groups, vector)
    asked = PairSums(grad or vector is None, True, grad, hess, vector is not None)
    kinds: tuple[Any, ...] = (SortedMoments, ClassMoments, partial(SortedMoments, below=True))
    found = [
        _contracted(xp, kind(xp, rows, of_kind), of_kind, rows.z, asked)
        for kind, of_kind in zip(kinds, terms[:3], strict=True)
        if of_kind is not None
    ]
    found += [smooth_sums(xp, rows, term, asked) for term in terms.smooth]
    found += [exponential_sums(xp, rows, term, asked) for term in terms.exponential]
    averaged = (rows.pair_weight > 0.0) & mean
    divisor = xp.where(averaged, rows.pair_weight, 1.0)
    scale = xp.where(averaged, 1.0, rows.scale)
    row_scale = xp.where(averaged, rows.row_scale / rows.scale, rows.row_scale)
    finite = xp.isfinite(scores).all(-1)[..., None]

    def finished(field: str) -> Array:
        a = xp.sum_of(getattr(part, field) for part in found)
        like = rows.x if field != "value" else rows.x[..., :1]
        out = (xp.zeros_like(like) if a is None else a.high) / divisor
        if field == "hvp":
            out = times_powers(xp, out, row_scale, row_scale, rows.unit)
        else:
            of_field = scale if field == "value" else row_scale
            out = out * of_field * of_field
        if field == "value":  # finite scores give NaN where parts of the sum overflow
            out = xp.where(out != out, float("inf"), out)
        # A score that is not finite may be in no pair; it makes every result NaN all the same.
        out = xp.where(finite, xp.where(out == 0.0, 0.0, out), float("nan"))
        return out if rows.order is None or field == "value" else xp.scatter(out, rows.order)

    return PairSums(
        finished("value")[..., 0],
        _true_pair_weight(xp, rows)[..., 0],
        finished("grad") if grad else None,
        finished("hess") if hess else None,
        finished("hvp") if vector is not None else None,
    )


def concordance(
    xp: Arrays, scores: Array, positive: Array, weights: Array, groups: Array
) -> tuple[Array, Array]:
    """Return the weight of the pairs in the right order, ties half, and that of all pairs.

    Both are over the same power of two.
    """
    rows = prepare(xp, scores, positive, weights, groups, None)
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
    right = xp.sum_of_terms(rows.runs.sum_of_rows(of_rows))
    return right.high[..., 0] / 2.0, rows.pair_weight[..., 0]


def _contracted(
    xp: Arrays,
    moments: SortedMoments | ClassMoments,
    terms: Terms,
    z: Any,
    asked: PairSums,
) -> PairSums:
    """Contract the moments of pairs with the coefficients of the terms, and sum over the terms."""
    _, b0, b1, b2, *_ = terms

    def combined(*products: tuple[Any, Callable[[], Number]]) -> Number | None:
        """Return the sum of coefficients times moments; those of coefficient None are not made."""
        return xp.sum_of(xp.scaled(moment(), b) for b, moment in products if b is not None)

    def per_row(a: Number | None, *, signed: bool = False) -> Number | None:
        """Return the share of each row in the order of the batch."""
        if a is None:
            return None
        a = a if moments.w is None else xp.times(moments.w, a)
        if signed:
            a = each(lambda part: xp.where(moments.is_upper, part, -part), a)
        return xp.sum_of_terms(moments.rows(a))

    def pull() -> Number:
        own, others = moments.along(z)
        return twice(xp.minus(xp.times(own, moments.mass), others))

    value = None
    if asked.value:
        value = combined(
            (b0, moments.pair_weight), (b1, moments.pair_distance), (b2, moments.pair_square)
        )
        parts = (value, moments.beyond())
        value = xp.sum_of(None if part is None else xp.sum_of_terms(part) for part in parts)
    slope = (b1, lambda: moments.mass), (b2, lambda: twice(moments.first))
    return PairSums(
        value,
        None,
        per_row(combined(*slope), signed=True) if asked.grad else None,
        per_row(combined((b2, lambda: twice(moments.mass)))) if asked.hess else None,
        per_row(combined((b2, pull))) if asked.hvp else None,
    )


def _true_pair_weight(xp: Arrays, rows: Rows) -> Array:
    """Return the pair weight on the caller's scale; it neither overflows nor becomes zero."""
    true = rows.pair_weight * rows.scale * rows.scale
    smallest, largest = xp.float_range
    true = xp.where(true > largest, largest, xp.where(true < smallest, smallest, true))
    return xp.where(rows.pair_weight > 0.0, true, rows.pair_weight)
