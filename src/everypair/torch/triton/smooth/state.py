"""Running sums over the rows of one class, as device functions.

Positions are p = s for positives and p = s + shift for negatives. A state describes rows that have
been passed on the way to a place: with the distance g = abs(place - p_j) and u = rate g, it is

    A_k = sum of w_j exp(-k u)          for k = 1, ..., K
    B_k = sum of w_j u exp(-k u)        the same K powers, if LINEAR
    w, m, q                             sums of w_j, w_j g and w_j g^2

If KINDS is 2, A_k and B_k follow once more with the weights w_j z_j, where z is a vector, and the
sum of w_j z_j stands last. A state is a tuple of float64 tensors in the order A, B, A, B, w, m, q,
z: one entry for each lane.

**Moving on** by a distance g multiplies A_k by exp(-k u) and turns B_k into (B_k + u A_k)
exp(-k u), m into m + g w, and q into q + 2 g m + g^2 w. Every factor is at most 1 and, for weights
of one sign, nothing is subtracted. So nothing overflows or cancels, at any offset and spread.
"""

from __future__ import annotations

import triton
import triton.language as tl

# The numbers of a surrogate in the float64 tensor `terms`, as `terms.Numbers` has them.
SHIFT, RATE, SCALE, B0, B1, B2, CONSTANT = (tl.constexpr(k) for k in range(7))
FAR = tl.constexpr(800.0)
"""The largest u: exp(-FAR) is 0 in float64."""
LARGEST = tl.constexpr(1.7e308)
"""The largest distance; infinity times a weight of 0 would be NaN."""


@triton.jit
def place_at(position, low, at, mask, HAS_LOW: tl.constexpr):
    """Return positions as high and low parts; 0 where masked."""
    high = tl.load(position + at, mask=mask, other=0.0).to(tl.float64)
    if HAS_LOW:
        found = high, tl.load(low + at, mask=mask, other=0.0)
    else:
        found = high, tl.zeros_like(high)
    return found


@triton.jit
def distance(a, b):
    """Return the distance of two places; it is finite."""
    return tl.minimum(tl.abs((a[0] - b[0]) + (a[1] - b[1])), LARGEST)


@triton.jit
def exponent(gap, rate):
    """Return u = rate * gap, at most FAR."""
    return tl.minimum(gap * rate, FAR)


@triton.jit
def times(gap, a):
    """Return gap * a, and 0 for no distance even if a has overflowed."""
    return tl.where(gap > 0.0, gap * a, 0.0)


@triton.jit
def powers_of(x, K: tl.constexpr):
    """Return x, x^2, ..., x^K."""
    found = (x,)
    for k in tl.static_range(1, K):  # x^(k + 1), by few multiplications in a row
        found += (found[(k - 1) // 2] * found[k // 2],)
    return found


@triton.jit
def no_rows(zero, K: tl.constexpr, LINEAR: tl.constexpr, KINDS: tl.constexpr):
    """Return the state of no rows; `zero` is a tensor of float64 zeros."""
    found = ()
    for _ in tl.static_range(KINDS * K * (1 + LINEAR) + 2 + KINDS):
        found += (zero,)
    return found


@triton.jit
def moved(state, gap, rate, K: tl.constexpr, LINEAR: tl.constexpr, KINDS: tl.constexpr):
    """Return the state after moving on by a distance."""
    PER_KIND: tl.constexpr = K * (1 + LINEAR)
    W: tl.constexpr = KINDS * PER_KIND
    u = exponent(gap, rate)
    powers = powers_of(tl.exp(-u), K)
    found = ()
    for kind in tl.static_range(KINDS):
        for k in tl.static_range(K):
            found += (state[kind * PER_KIND + k] * powers[k],)
        if LINEAR:
            for k in tl.static_range(K):
                a, b = state[kind * PER_KIND + k], state[kind * PER_KIND + K + k]
                found += ((b + u * a) * powers[k],)
    further = state[W + 1] + gap * state[W]
    found += (state[W], further, state[W + 2] + times(gap, state[W + 1] + further))
    if KINDS > 1:
        found += (state[W + 3],)
    return found


@triton.jit
def with_row(state, w, z, K: tl.constexpr, LINEAR: tl.constexpr, KINDS: tl.constexpr):
    """Return the state with one more row at the place itself."""
    PER_KIND: tl.constexpr = K * (1 + LINEAR)
    W: tl.constexpr = KINDS * PER_KIND
    found = ()
    weight = w
    for kind in tl.static_range(KINDS):
        for k in tl.static_range(K):
            found += (state[kind * PER_KIND + k] + weight,)
        if LINEAR:
            for k in tl.static_range(K):
                found += (state[kind * PER_KIND + K + k],)
        weight = w * z
    found += (state[W] + w, state[W + 1], state[W + 2])
    if KINDS > 1:
        found += (state[W + 3] + weight,)
    return found


@triton.jit
def with_far_row(state, w, z, gap, rate, K: tl.constexpr, LINEAR: tl.constexpr,
                 KINDS: tl.constexpr):  # fmt: skip
    """Return the state with one more row at a distance from the place."""
    PER_KIND: tl.constexpr = K * (1 + LINEAR)
    W: tl.constexpr = KINDS * PER_KIND
    u = exponent(gap, rate)
    powers = powers_of(tl.exp(-u), K)
    found = ()
    weight = w
    for kind in tl.static_range(KINDS):
        for k in tl.static_range(K):
            found += (state[kind * PER_KIND + k] + weight * powers[k],)
        if LINEAR:
            for k in tl.static_range(K):
                found += (state[kind * PER_KIND + K + k] + weight * u * powers[k],)
        weight = w * z
    # In this order, a row of weight 0 adds 0 even if the square of its distance overflows.
    found += (state[W] + w, state[W + 1] + w * gap, state[W + 2] + w * gap * gap)
    if KINDS > 1:
        found += (state[W + 3] + weight,)
    return found


@triton.jit
def plus(a, b, SIZE: tl.constexpr):
    """Return the sum of two states at the same place."""
    found = ()
    for k in tl.static_range(SIZE):
        found += (a[k] + b[k],)
    return found


@triton.jit
def contracted(state, kind: tl.constexpr, fit: tl.constexpr, FITS: tl.constexpr, K: tl.constexpr,
               LINEAR: tl.constexpr, KINDS: tl.constexpr):  # fmt: skip
    """Return the sum over k of c_k A_k + e_k B_k, with the coefficients of a fit in FITS."""
    PER_KIND: tl.constexpr = K * (1 + LINEAR)
    total = tl.zeros_like(state[0])
    for k in tl.static_range(K):
        if FITS[2 * (fit * K + k)] != 0.0:
            total += FITS[2 * (fit * K + k)] * state[kind * PER_KIND + k]
        if LINEAR:
            if FITS[2 * (fit * K + k) + 1] != 0.0:
                total += FITS[2 * (fit * K + k) + 1] * state[kind * PER_KIND + K + k]
    return total


@triton.jit
def load_state(at, stride, mask, SIZE: tl.constexpr):
    """Return the state that `store_state` stored; 0 where masked."""
    found = ()
    for k in tl.static_range(SIZE):
        found += (tl.load(at + k * stride, mask=mask, other=0.0),)
    return found


@triton.jit
def store_state(to, stride, state, SIZE: tl.constexpr):
    """Store a state in columns that are `stride` words long."""
    for k in tl.static_range(SIZE):
        tl.store(to + k * stride, state[k])


# Scans: each entry holds a distance, or what it does to a sum, and the sums of its own rows.


@triton.jit
def carry_power(f0, a0, f1, a1):
    """Combine A_k; f is exp(-k u)."""
    return f0 * f1, a0 * f1 + a1


@triton.jit
def carry_linear(u0, f0, a0, b0, u1, f1, a1, b1):
    """Combine A_k and B_k."""
    return u0 + u1, f0 * f1, a0 * f1 + a1, (b0 + u1 * a0) * f1 + b1


@triton.jit
def carry_moments(g0, w0, m0, q0, g1, w1, m1, q1):
    """Combine w, m and q."""
    further = m0 + g1 * w0
    g = tl.minimum(g0 + g1, LARGEST)
    return g, w0 + w1, further + m1, q0 + times(g1, m0 + further) + q1


@triton.jit
def scanned(state, gap, rate, K: tl.constexpr, LINEAR: tl.constexpr, KINDS: tl.constexpr):
    """Return the states of all lanes up to each lane, at its place; gap is from the lane before."""
    PER_KIND: tl.constexpr = K * (1 + LINEAR)
    W: tl.constexpr = KINDS * PER_KIND
    u = exponent(gap, rate)
    powers = powers_of(tl.exp(-u), K)
    found = ()
    for kind in tl.static_range(KINDS):
        linear = ()
        for k in tl.static_range(K):
            a = state[kind * PER_KIND + k]
            if LINEAR:
                b = state[kind * PER_KIND + K + k]
                _, _, a, b = tl.associative_scan((u, powers[k], a, b), 0, carry_linear)
                linear += (b,)
            else:
                _, a = tl.associative_scan((powers[k], a), 0, carry_power)
            found += (a,)
        found += linear
    _, w, m, q = tl.associative_scan((gap, state[W], state[W + 1], state[W + 2]), 0, carry_moments)
    found += (w, m, q)
    if KINDS > 1:
        found += (tl.cumsum(state[W + 3], 0),)
    return found
