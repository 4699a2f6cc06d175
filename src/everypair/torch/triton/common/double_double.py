"""Double-double numbers and moments of rows, as device functions.

A number is a tuple ``(high, low)`` of two float64, of which `high` is their rounded sum. Where the
constant DD is false, `low` is 0 and ignored, and the arithmetic is that of float64. Kernels that
use these functions are launched with ``enable_fp_fusion=False``: a fused multiply-add would round
differently from the formulas.

Moments are a tuple ``(w, m, q, x)``: the weight of some rows x_j, and the first and second moment
of their distances below the place x,

    w = sum of w_j      m = sum of w_j (x - x_j)      q = sum of w_j (x - x_j)^2

About the place x + g they are w, m + g w and q + g (m + (m + g w)). Nothing is subtracted. Rows of
weight 0 do not change x, so they cause no rounding.
"""

from __future__ import annotations

import triton
import triton.language as tl

from everypair.torch.triton.common.launch import INTERPRETED

_HAS_FMA = tl.constexpr(not INTERPRETED)
"""Whether `tl.fma` rounds once: in the interpreter of Triton before 3.9 it rounds twice."""


@triton.jit
def two_sum(a, b):
    """Return the rounded sum and its exact rounding error (Knuth)."""
    s = a + b
    of_b = s - a
    return s, (a - (s - of_b)) + (b - of_b)


@triton.jit
def _halves(a):
    """Return two floats of at most 26 bits with the sum a (Veltkamp)."""
    shifted = a * 134217728.0 + a
    high = shifted - (shifted - a)
    return high, a - high


@triton.jit
def two_product(a, b):
    """Return the rounded product and its exact rounding error, or 0 if the product overflows."""
    p = a * b
    if _HAS_FMA:
        e = tl.fma(a, b, -p)
    else:  # Dekker
        a_high, a_low = _halves(a)
        b_high, b_low = _halves(b)
        e = ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low
    return p, tl.where(e - e == 0.0, e, 0.0)


@triton.jit
def _fast_two_sum(high, low):
    """Return the rounded sum and its exact error, for abs(high) >= abs(low) (Dekker)."""
    s = high + low
    return s, low - (s - high)


@triton.jit
def from_double(a):
    """Return a float64 as a number."""
    return a, tl.full(a.shape, 0.0, tl.float64)


@triton.jit
def to_double(a):
    """Return a number rounded to float64."""
    return a[0] + a[1]


@triton.jit
def add(a, b, DD: tl.constexpr):
    """Return a + b."""
    if DD:
        high, low = two_sum(a[0], b[0])
        found = _fast_two_sum(high, low + (a[1] + b[1]))
    else:
        found = a[0] + b[0], a[1]
    return found


@triton.jit
def sub(a, b, DD: tl.constexpr):
    """Return a - b."""
    return add(a, (-b[0], -b[1]), DD)


@triton.jit
def mul(a, b, DD: tl.constexpr):
    """Return a * b."""
    if DD:
        high, low = two_product(a[0], b[0])
        found = _fast_two_sum(high, low + (a[0] * b[1] + a[1] * b[0]))
    else:
        found = a[0] * b[0], a[1]
    return found


@triton.jit
def mul_double(a, factor, DD: tl.constexpr):
    """Return a * factor, where factor is a float64."""
    if DD:
        high, low = two_product(a[0], factor)
        found = _fast_two_sum(high, low + a[1] * factor)
    else:
        found = a[0] * factor, a[1]
    return found


@triton.jit
def distance(place, x, DD: tl.constexpr):
    """Return place - x for a float64 x; `place` has a low part even if DD is false."""
    if DD:
        high, low = two_sum(place[0], -x)
        found = _fast_two_sum(high, low + place[1])
    else:
        found = from_double((place[0] - x) + place[1])
    return found


@triton.jit
def _sum_of_two(a, a_low, b, b_low):
    """Return a + b, for reductions and scans."""
    return add((a, a_low), (b, b_low), True)


@triton.jit
def sum_all(a, DD: tl.constexpr):
    """Return the sum over all entries."""
    return tl.reduce((a[0], a[1]), 0, _sum_of_two) if DD else from_double(tl.sum(a[0], 0))


@triton.jit
def cumulative_sum(a, DD: tl.constexpr):
    """Return the sums up to and including each entry."""
    if DD:
        found = tl.associative_scan((a[0], a[1]), 0, _sum_of_two)
    else:
        found = tl.cumsum(a[0], 0), a[1]
    return found


@triton.jit
def no_moments(zero):
    """Return the moments of no rows."""
    return (zero, zero), (zero, zero), (zero, zero), zero


@triton.jit
def moments_at(moments, place, DD: tl.constexpr):
    """Return w, m and q of the moments about another place, which is a number."""
    w, m, q, x = moments
    gap = distance(place, x, DD)
    further = add(m, mul(gap, w, DD), DD)
    return w, further, add(q, mul(gap, add(m, further, DD), DD), DD)


@triton.jit
def merge(lower, upper, DD: tl.constexpr):
    """Return the moments of two sets of rows, about the place of the upper set if it has weight."""
    heavy = upper[0][0] > 0.0
    x = tl.where(heavy, upper[3], lower[3])
    w, m, q = moments_at(lower, from_double(x), DD)
    return add(w, upper[0], DD), add(m, upper[1], DD), add(q, upper[2], DD), x


@triton.jit
def store_moments(to, stride, moments, mask, DD: tl.constexpr):
    """Store moments in MOMENTS columns, or MOMENTS_DD; a column is `stride` words long."""
    w, m, q, x = moments
    tl.store(to, x, mask=mask)
    tl.store(to + stride, w[0], mask=mask)
    tl.store(to + 2 * stride, m[0], mask=mask)
    tl.store(to + 3 * stride, q[0], mask=mask)
    if DD:
        tl.store(to + 4 * stride, w[1], mask=mask)
        tl.store(to + 5 * stride, m[1], mask=mask)
        tl.store(to + 6 * stride, q[1], mask=mask)


@triton.jit
def load_moments(at, stride, mask, DD: tl.constexpr):
    """Return the moments that `store_moments` stored; 0 where masked."""
    x = tl.load(at, mask=mask, other=0.0)
    w = from_double(tl.load(at + stride, mask=mask, other=0.0))
    m = from_double(tl.load(at + 2 * stride, mask=mask, other=0.0))
    q = from_double(tl.load(at + 3 * stride, mask=mask, other=0.0))
    if DD:
        w = w[0], tl.load(at + 4 * stride, mask=mask, other=0.0)
        m = m[0], tl.load(at + 5 * stride, mask=mask, other=0.0)
        q = q[0], tl.load(at + 6 * stride, mask=mask, other=0.0)
    return w, m, q, x


@triton.jit
def store_number(to, stride, a, mask, DD: tl.constexpr):
    """Store a number in one column, or in two if DD."""
    tl.store(to, a[0], mask=mask)
    if DD:
        tl.store(to + stride, a[1], mask=mask)


@triton.jit
def load_number(at, stride, mask, DD: tl.constexpr):
    """Return the number that `store_number` stored; 0 where masked."""
    a = from_double(tl.load(at, mask=mask, other=0.0))
    if DD:
        a = a[0], tl.load(at + stride, mask=mask, other=0.0)
    return a
