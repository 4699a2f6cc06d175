"""Polynomials for 1 / (1 + x)^p and log(1 + x) / x on [0, 1], with proven relative errors.

All arithmetic is exact, with fractions. T is the Chebyshev polynomial of [0, 1] (T_m(2x - 1) in the
usual notation), so |T| <= 1 there, while |T| grows like 5.83^m / 2 at -1, the pole of
1 / (1 + x).

- `inverse_power`: let E be a combination of T_m, ..., T_(m-p+1) with E(-1) = 1 and p - 1 zero
  derivatives at -1. Then 1 - E is divisible by (1 + x)^p, the quotient q is a polynomial of degree
  m - p, and (1 + x)^p q(x) = 1 - E(x). So the relative error of q is |E|, which is at most the sum
  of the absolute coefficients of E. For p = 1 it is 1 / T_m(-1).
- `log_ratio`: the integral of q from 0 to x, over x. The integrand 1 / (1 + t) is positive, so the
  relative error of its integral log(1 + x) is no larger than that of q.
- `product`: relative errors a and b give at most a + b + a b.
- `economised`: subtracting c T_m / 2^(2m-1) removes the leading coefficient c and changes the
  polynomial by at most |c| / 2^(2m-1) (Lanczos).
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

Coefficients = list[Fraction]


class Approximation(NamedTuple):
    """Coefficients of a polynomial, from x^0 on, and a bound of its relative error on [0, 1]."""

    coefficients: Coefficients
    bound: Fraction


def inverse_power(power: int, degree: int) -> Approximation:
    """Return a polynomial of this degree for (1 + x)^-power."""
    basis = [chebyshev(degree + power - i) for i in range(power)]
    # Rows: the value and the derivatives of the basis at -1, divided by factorials.
    rows = [_expanded(t)[:power] for t in basis]
    factors = _solved([list(row) for row in zip(*rows, strict=True)], [1] + [0] * (power - 1))
    q = [Fraction(0)] * (degree + power + 1)
    q[0] += 1
    for factor, t in zip(factors, basis, strict=True):
        for k, c in enumerate(t):
            q[k] -= factor * c
    for _ in range(power):  # divide by 1 + x; the remainder is zero
        quotient, carry = [Fraction(0)] * (len(q) - 1), Fraction(0)
        for k in range(len(q) - 1, 0, -1):
            carry = q[k] - carry
            quotient[k - 1] = carry
        q = quotient
    return Approximation(q, sum(map(abs, factors), Fraction(0)))


def log_ratio(degree: int) -> Approximation:
    """Return a polynomial of this degree for log(1 + x) / x."""
    q, bound = inverse_power(1, degree)
    return Approximation([c / (k + 1) for k, c in enumerate(q)], bound)


def product(a: Approximation, b: Approximation) -> Approximation:
    """Return the product of two approximations, as one of the product of their functions."""
    bound = a.bound + b.bound + a.bound * b.bound
    return Approximation(multiplied(a.coefficients, b.coefficients), bound)


def plus(a: Approximation, b: Approximation) -> Approximation:
    """Return the sum. The larger bound holds if both functions have the same sign."""
    n = max(len(a.coefficients), len(b.coefficients))
    p, q = (c + [Fraction(0)] * (n - len(c)) for c in (a.coefficients, b.coefficients))
    return Approximation([c + d for c, d in zip(p, q, strict=True)], max(a.bound, b.bound))


def times_polynomial(a: Approximation, *factor: int) -> Approximation:
    """Return the product with an exact polynomial; its relative error is the same."""
    return Approximation(multiplied(a.coefficients, list(map(Fraction, factor))), a.bound)


def economised(a: Approximation, error: float, smallest: Fraction) -> Approximation:
    """Lower the degree while the relative error grows by at most `error`.

    `smallest` is a lower bound of the function on [0, 1].
    """
    p, added = list(a.coefficients), Fraction(0)
    while len(p) > 2:
        m = len(p) - 1
        step = p[-1] / 2 ** (2 * m - 1)
        if added + abs(step) / smallest > error:
            break
        added += abs(step) / smallest
        p = [c - step * t for c, t in zip(p, chebyshev(m), strict=True)][:-1]
    return Approximation(p, a.bound + added)


def multiplied(a: Coefficients, b: Coefficients) -> Coefficients:
    """Return the product of two polynomials."""
    out = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, c in enumerate(a):
        for j, d in enumerate(b):
            out[i + j] += c * d
    return out


@lru_cache(maxsize=64)
def chebyshev(m: int) -> list[int]:
    """Return the coefficients of T_m(2x - 1), from x^0 on."""
    before, current = [1], [-1, 2]
    if m == 0:
        return before
    for _ in range(m - 1):  # T_(m+1)(y) = 2 y T_m(y) - T_(m-1)(y) with y = 2x - 1
        after = [-2 * c for c in current] + [0]
        for k, c in enumerate(current):
            after[k + 1] += 4 * c
        for k, c in enumerate(before):
            after[k] -= c
        before, current = current, after
    return current


def _expanded(p: list[int]) -> list[int]:
    """Return the coefficients of a polynomial in powers of 1 + x."""
    p, out = list(p), []
    while p:
        carry, quotient = 0, []
        for c in reversed(p):
            carry = c - carry
            quotient.append(carry)
        out.append(quotient.pop())
        p = quotient[::-1]
    return out


def _solved(a: list[list[int]], b: list[int]) -> Coefficients:
    """Solve a small linear system by elimination."""
    rows = [[*map(Fraction, row), Fraction(right)] for row, right in zip(a, b, strict=True)]
    n = len(rows)
    for i in range(n):
        pivot = next(j for j in range(i, n) if rows[j][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [c / rows[i][i] for c in rows[i]]
        for j in range(n):
            if j != i:
                rows[j] = [c - rows[j][i] * d for c, d in zip(rows[j], rows[i], strict=True)]
    return [row[-1] for row in rows]
