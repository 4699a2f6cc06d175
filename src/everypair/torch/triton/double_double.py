"""Numbers of two doubles, and moments of rows about a place, inside Triton's kernels.

A number is a tuple ``(high, low)``, the twin of `_compensated.Number`. With PAIRED false the low
part is zero and never looked at: what is left is plain arithmetic. Kernels that use these are
launched with ``enable_fp_fusion=False``, or the compiler would round where the formulae do not.

Moments are a tuple ``(w, m, q, x)``: the weight of some rows, and the first and the second moment
of their distances below the place x,

    w = sum of w_j      m = sum of w_j (x - x_j)      q = sum of w_j (x - x_j)^2

Seen from a place further up by g they are w, m + g w and q + g (m + (m + g w)), in which nothing is
subtracted. Rows that weigh nothing move no place, so they leave no rounding.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "apart",
    "cumulated",
    "joined",
    "loaded",
    "loaded_number",
    "minus",
    "no_moments",
    "number",
    "one",
    "plus",
    "scaled",
    "seen",
    "store",
    "store_number",
    "times",
    "total",
    "two_sum",
]


@triton.jit
def two_sum(a, b):
    """Return the rounded sum and exactly what the rounding left out (Knuth)."""
    s = a + b
    of_b = s - a
    return s, (a - (s - of_b)) + (b - of_b)


@triton.jit
def _two_product(a, b):
    p = a * b
    e = tl.fma(a, b, -p)
    return p, tl.where(e - e == 0.0, e, 0.0)  # where the product overflows, it is all there is


@triton.jit
def _normal(high, low):
    s = high + low
    return s, low - (s - high)


@triton.jit
def number(a):
    return a, tl.full(a.shape, 0.0, tl.float64)


@triton.jit
def one(a):
    """Return a number as one double."""
    return a[0] + a[1]


@triton.jit
def plus(a, b, PAIRED: tl.constexpr):
    if PAIRED:
        high, low = two_sum(a[0], b[0])
        found = _normal(high, low + (a[1] + b[1]))
    else:
        found = a[0] + b[0], a[1]
    return found


@triton.jit
def minus(a, b, PAIRED: tl.constexpr):
    return plus(a, (-b[0], -b[1]), PAIRED)


@triton.jit
def times(a, b, PAIRED: tl.constexpr):
    if PAIRED:
        high, low = _two_product(a[0], b[0])
        found = _normal(high, low + (a[0] * b[1] + a[1] * b[0]))
    else:
        found = a[0] * b[0], a[1]
    return found


@triton.jit
def scaled(a, factor, PAIRED: tl.constexpr):
    """Return a * factor, which is one double."""
    if PAIRED:
        high, low = _two_product(a[0], factor)
        found = _normal(high, low + a[1] * factor)
    else:
        found = a[0] * factor, a[1]
    return found


@triton.jit
def apart(place, x, PAIRED: tl.constexpr):
    """Return how far the double x lies below a place, which is a number in either case."""
    if PAIRED:
        high, low = two_sum(place[0], -x)
        found = _normal(high, low + place[1])
    else:
        found = number((place[0] - x) + place[1])
    return found


@triton.jit
def _sum_of_two(a, a_low, b, b_low):
    return plus((a, a_low), (b, b_low), True)


@triton.jit
def total(a, PAIRED: tl.constexpr):
    """Return the sum along the only axis."""
    return tl.reduce((a[0], a[1]), 0, _sum_of_two) if PAIRED else number(tl.sum(a[0], 0))


@triton.jit
def cumulated(a, PAIRED: tl.constexpr):
    """Return the sums along the only axis up to each entry, itself included."""
    if PAIRED:
        found = tl.associative_scan((a[0], a[1]), 0, _sum_of_two)
    else:
        found = tl.cumsum(a[0], 0), a[1]
    return found


@triton.jit
def no_moments(zero):
    """Return the moments of no rows."""
    return (zero, zero), (zero, zero), (zero, zero), zero


@triton.jit
def seen(moments, place, PAIRED: tl.constexpr):
    """Return the moments, and no place, seen from another place."""
    w, m, q, x = moments
    gap = apart(place, x, PAIRED)
    further = plus(m, times(gap, w, PAIRED), PAIRED)
    return w, further, plus(q, times(gap, plus(m, further, PAIRED), PAIRED), PAIRED)


@triton.jit
def joined(lower, upper, PAIRED: tl.constexpr):
    """Return the moments of two sets of rows, about the place of the upper one."""
    heavy = upper[0][0] > 0.0
    x = tl.where(heavy, upper[3], lower[3])
    w, m, q = seen(lower, number(x), PAIRED)
    return (
        plus(w, upper[0], PAIRED),
        plus(m, upper[1], PAIRED),
        plus(q, upper[2], PAIRED),
        x,
    )


@triton.jit
def store(to, stride, moments, mask, PAIRED: tl.constexpr):
    """Store moments as four columns, or seven."""
    w, m, q, x = moments
    tl.store(to, x, mask=mask)
    tl.store(to + stride, w[0], mask=mask)
    tl.store(to + 2 * stride, m[0], mask=mask)
    tl.store(to + 3 * stride, q[0], mask=mask)
    if PAIRED:
        tl.store(to + 4 * stride, w[1], mask=mask)
        tl.store(to + 5 * stride, m[1], mask=mask)
        tl.store(to + 6 * stride, q[1], mask=mask)


@triton.jit
def loaded(at, stride, mask, PAIRED: tl.constexpr):
    """Return moments that were stored."""
    x = tl.load(at, mask=mask, other=0.0)
    w = number(tl.load(at + stride, mask=mask, other=0.0))
    m = number(tl.load(at + 2 * stride, mask=mask, other=0.0))
    q = number(tl.load(at + 3 * stride, mask=mask, other=0.0))
    if PAIRED:
        w = w[0], tl.load(at + 4 * stride, mask=mask, other=0.0)
        m = m[0], tl.load(at + 5 * stride, mask=mask, other=0.0)
        q = q[0], tl.load(at + 6 * stride, mask=mask, other=0.0)
    return w, m, q, x


@triton.jit
def store_number(to, stride, a, mask, PAIRED: tl.constexpr):
    """Store a number as one column, or two."""
    tl.store(to, a[0], mask=mask)
    if PAIRED:
        tl.store(to + stride, a[1], mask=mask)


@triton.jit
def loaded_number(at, stride, mask, PAIRED: tl.constexpr):
    """Return a number that was stored."""
    a = number(tl.load(at, mask=mask, other=0.0))
    if PAIRED:
        a = a[0], tl.load(at + stride, mask=mask, other=0.0)
    return a
