"""The form in which the compiled kernel takes a smooth surrogate.

The kernel takes one smooth term and a truncated polynomial with the same shift. That covers the
built-in smooth surrogates and those of `surrogates.fit`. Other sums are left to NumPy.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from everypair.surrogates import KnotTerm, PairTerm, SmoothCoefficients, smooth_coefficients

_MOST_POWERS = 24
_BUCKETS_PER_TEMPERATURE = 16
# Relative to the function itself: the error of a pair that the bucket plan may have.
_BUCKET_ERROR = 2e-7


class SmoothForm(NamedTuple):
    """The arguments of ``_native.evaluate_smooth`` that describe a surrogate.

    Attributes
    ----------
    term : (shift, rate, b0, b1, b2, linear)
        ``b0 + b1 d + b2 d^2`` where d > 0; `linear`: some powers have a factor |d|.
    value, slope, curvature : (2, K, 2) float64
        See `SmoothCoefficients`.
    inside : (3, 4) float64 or None
        By order of the derivative: the cubic polynomial in t, from the power 0 on, that replaces
        the function for pairs of one bucket, with ``d = t / (16 rate)`` and |t| < 1. None if the
        function, or its series between buckets, is not smooth enough for buckets.
    """

    term: tuple[float, float, float, float, float, bool]
    value: NDArray[np.float64]
    slope: NDArray[np.float64]
    curvature: NDArray[np.float64]
    inside: NDArray[np.float64] | None


@lru_cache(maxsize=64)
def smooth_form(terms: tuple[PairTerm, ...], wide: bool) -> SmoothForm | None:
    """Return the form of these terms for float64 scores (`wide`) or float32; None without one."""
    smooth = smooth_coefficients(terms, np.float64 if wide else np.float32)
    knots = [term for term in terms if type(term) is KnotTerm]
    if len(smooth) != 1 or len(knots) + 1 != len(terms):
        return None
    (only,) = smooth
    orders = (only.value, only.slope, only.curvature)
    if any(not k.truncated or k.shift != only.shift for k in knots) or any(
        a.shape[1] > _MOST_POWERS for a in orders
    ):
        return None
    b0, b1, b2 = (float(sum(knot[i] for knot in knots)) for i in (1, 2, 3))
    linear = any(bool(a[..., 1].any()) for a in orders)
    inside = None if wide or linear else _inside(only, b0, b1, b2)
    return SmoothForm((only.shift, only.rate, b0, b1, b2, linear), *orders, inside)


def _inside(
    smooth: SmoothCoefficients, b0: float, b1: float, b2: float
) -> NDArray[np.float64] | None:
    """Fit the cubic polynomials, and check them and the series between buckets on grids."""
    polynomials = ((b0, b1, b2), (b1, 2.0 * b2, 0.0), (2.0 * b2, 0.0, 0.0))
    orders = (smooth.value, smooth.slope, smooth.curvature)
    fits = [_Fit(smooth.rate, a[..., 0], c) for a, c in zip(orders, polynomials, strict=True)]
    # The Hessian diagonal may cross zero, so only loss and gradient have a relative error.
    if max(fit.error() for fit in fits[:2]) > _BUCKET_ERROR:
        return None
    return np.array([fit.cubic for fit in fits])


class _Fit:
    """One function of ``d = t / (16 rate)``: powers a (2, K), and a polynomial where d > 0."""

    def __init__(self, rate: float, a: NDArray[np.float64], c: tuple[float, ...]) -> None:
        self._step = 1.0 / _BUCKETS_PER_TEMPERATURE
        self._exponents = self._step * np.arange(1, a.shape[1] + 1)
        self._a, self._c, self._width = a, c, self._step / rate
        nodes = np.cos(np.pi * (np.arange(4) + 0.5) / 4)
        self.cubic = np.polynomial.polynomial.polyfit(nodes, self(nodes), 3)

    def __call__(self, t: NDArray[np.float64]) -> NDArray[np.float64]:
        x = np.exp(-abs(t)[..., None] * self._exponents)
        above: NDArray[np.float64] = x @ self._a[1] + self._polynomial(t)
        return np.where(t > 0.0, above, x @ self._a[0])

    def _polynomial(self, t: NDArray[np.float64]) -> NDArray[np.float64]:
        d = self._width * t
        polynomial: NDArray[np.float64] = self._c[0] + d * (self._c[1] + d * self._c[2])
        return polynomial

    def error(self) -> float:
        """Return the largest relative error of a pair, inside a bucket and between buckets."""
        grid = np.linspace(-1.0, 1.0, 33)
        found = [abs(np.polynomial.polynomial.polyval(grid, self.cubic) / self(grid) - 1.0).max()]
        # The distance of the centres, and the offsets of the nearer and of the farther row.
        centres, near, far = np.meshgrid(2.0 ** np.arange(10), [-0.5, 0.5], [-0.5, 0.5])
        between = centres + near - far
        for side, sign in ((0, -1.0), (1, 1.0)):
            y = self._exponents
            x = np.exp(-centres[..., None] * y) * _series(-near[..., None] * y)
            sums = (x * _series(far[..., None] * y)) @ self._a[side]
            if side:
                sums = sums + self._polynomial(between)
            found.append(abs(sums / self(sign * between) - 1.0).max())
        return float(max(found))


def _series(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Taylor series of exp up to the third order."""
    return 1.0 + y * (1.0 + y * (0.5 + y / 6.0))
