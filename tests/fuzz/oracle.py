"""All results of a batch in exact arithmetic, in O(n log n) operations on integers of any size.

Every float is an integer times a power of two. Scores share one power, and so do weights, vectors
and coefficients. So sums over sorted rows are sums of integers, and no digit is lost. Results are
rounded once, by the division at the end.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class Answer(NamedTuple):
    """Exact results, rounded to float64; infinite where they exceed its range.

    `auc` is None if there is no pair.
    """

    value: float
    grad: np.ndarray
    hess: np.ndarray
    hvp: np.ndarray
    auc: float | None


class Side(NamedTuple):
    """The rows of one class of one group, sorted by score; x, w and z are integers."""

    rows: np.ndarray
    x: np.ndarray
    w: np.ndarray
    z: np.ndarray


def exact(batch):
    """Return the value and all derivatives of a batch.

    A term counts for a pair if s_neg + shift > s_pos holds for the real numbers that the floats
    are, where the shift is margin - knot, rounded to a float. Nothing else is rounded: the term is
    its polynomial at t = s_neg + margin - s_pos.
    """
    n = batch.scores.size
    terms = batch.surrogate.terms
    shifts = [None if term.knot is None else batch.margin - term.knot for term in terms]
    finite = [0.0 if shift is None else shift for shift in shifts]
    x, unit_x = scaled(np.concatenate([batch.scores, finite, [batch.margin, 1.0]]))
    w, unit_w = scaled(np.ones(n) if batch.weights is None else batch.weights)
    z, unit_z = scaled(batch.vector)
    c, unit_c = scaled(np.array([c for term in terms for c in (term.c0, term.c1, term.c2)]))
    margin, one = x[-2], x[-1]
    value, pair_weight, concordant = 0, 0, 0
    slopes, curvatures, products = (np.zeros(n, object) for _ in range(3))
    for rows in blocks_of(batch):
        by_score = (of[np.argsort(batch.scores[of], kind="stable")] for of in rows)
        pos, neg = (Side(of, x[of], w[of], z[of]) for of in by_score)
        pair_weight += pos.w.sum() * neg.w.sum()
        concordant += twice_concordant(pos, neg)
        for j in range(len(terms)):
            shift = None if shifts[j] is None else x[n + j]
            c0, c1, c2 = c[3 * j : 3 * j + 3]
            polynomial = (c0 * one * one, c1 * one, c2)  # in integers t
            value += add_term(pos, neg, shift, margin, polynomial, slopes, curvatures, products)
    mean = batch.reduction == "mean"
    divisor = pair_weight if mean else 1
    unit = unit_c + (0 if mean else 2 * unit_w)  # those of numerator and divisor cancel
    return Answer(
        quotient(value, divisor, unit + 2 * unit_x),
        quotients(slopes, divisor, unit + unit_x),
        quotients(curvatures, divisor, unit),
        quotients(products, divisor, unit + unit_z),
        quotient(concordant, pair_weight, -1) if pair_weight else None,
    )


def add_term(pos, neg, shift, margin, polynomial, slopes, curvatures, products):
    """Add the derivatives of one term to the arrays, and return its value.

    The shift is None for a term without a knot.
    """
    c0, c1, c2 = polynomial
    # For the negatives: sums over the positives below s_neg + shift; t is v - s_pos.
    k = pos.x.size if shift is None else np.searchsorted(pos.x, neg.x + shift, side="left")
    w0, w1, w2, wz = (prefix(a)[k] for a in (pos.w, pos.w * pos.x, pos.w * pos.x**2, pos.w * pos.z))
    v = neg.x + margin
    first = v * w0 - w1
    second = v * (first - w1) + w2
    slopes[neg.rows] += neg.w * (c1 * w0 + 2 * c2 * first)
    curvatures[neg.rows] += neg.w * (2 * c2 * w0)
    products[neg.rows] += neg.w * (2 * c2 * (neg.z * w0 - wz))
    # For the positives: sums over the negatives above s_pos - shift; t is s_neg - u.
    k = 0 if shift is None else np.searchsorted(neg.x, pos.x - shift, side="right")
    m0, m1, mz = (above(a)[k] for a in (neg.w, neg.w * neg.x, neg.w * neg.z))
    u = pos.x - margin
    slopes[pos.rows] -= pos.w * (c1 * m0 + 2 * c2 * (m1 - u * m0))
    curvatures[pos.rows] += pos.w * (2 * c2 * m0)
    products[pos.rows] += pos.w * (2 * c2 * (pos.z * m0 - mz))
    return (neg.w * (c0 * w0 + c1 * first + c2 * second)).sum()


def twice_concordant(pos, neg):
    """Return twice the weight of the pairs in the right order; ties count half."""
    weights = prefix(neg.w)
    below = weights[np.searchsorted(neg.x, pos.x, side="left")]
    up_to = weights[np.searchsorted(neg.x, pos.x, side="right")]
    return (pos.w * (below + up_to)).sum()


def prefix(a):
    """Return the sums of the first k entries, for k = 0 .. n."""
    return np.concatenate([[0], np.cumsum(a)])


def above(a):
    """Return the sums of all but the first k entries, for k = 0 .. n."""
    return prefix(a[::-1])[::-1]


def scaled(numbers):
    """Write floats as integers and the exponent of their largest common power of two."""
    mantissas, exponents = np.frexp(np.asarray(numbers, np.float64))
    integers = np.ldexp(mantissas, 53).astype(np.int64)
    zeros = np.log2(np.maximum(integers & -integers, 1).astype(np.float64)).astype(int)
    integers, exponents = integers >> zeros, exponents - 53 + zeros
    least = int(exponents[integers != 0].min(initial=2000))
    least = 0 if least == 2000 else least
    ups = np.where(integers == 0, 0, exponents - least)
    shifted = [i << u for i, u in zip(integers.tolist(), ups.tolist(), strict=True)]
    return np.array([*shifted, 0], object)[:-1], least


def quotients(numerators, divisor, exponent):
    return np.array([quotient(numerator, divisor, exponent) for numerator in numerators])


def quotient(numerator, divisor, exponent):
    """Return numerator 2^exponent / divisor, rounded once; 0 if there is nothing to divide."""
    if numerator == 0:
        return 0.0
    if exponent >= 0:
        numerator <<= exponent
    else:
        divisor <<= -exponent
    try:
        return numerator / divisor
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf


def blocks_of(batch):
    """Yield rows and the rows that each of them is to outscore, so that every pair occurs once."""
    for rows in groups_of(batch):
        for label in [1] if batch.pairs == "binary" else np.unique(batch.labels[rows]):
            pos = rows[batch.labels[rows] == label]
            if pos.size:
                neg = rows[batch.are_pairs(pos[:1], rows)[0]]
                if neg.size:
                    yield pos, neg


def groups_of(batch):
    """Return the rows of each group; rows of weight 0 have no pairs and are left out."""
    rows = np.arange(batch.scores.size)
    if batch.weights is not None:
        rows = rows[batch.weights > 0]
    if batch.groups is None:
        yield rows
        return
    codes = batch.groups[rows]
    order = np.argsort(codes, kind="stable")
    yield from np.split(rows[order], np.flatnonzero(np.diff(codes[order])) + 1)
