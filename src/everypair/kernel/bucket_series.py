"""The form in which the compiled kernel takes a smooth surrogate.

The kernel takes one smooth term and a truncated polynomial with the same shift. That covers the
built-in surrogates and those of `surrogates.fit`. For buckets of rows, polynomials in the offsets
inside a bucket replace the exponential functions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from everypair.surrogates import Table

_Floats = NDArray[np.float64]

_MOST_POWERS = 24
_MOMENTS = 8
# For float32 and for float64 scores: the largest widths of buckets to try, in temperatures, and the
# error of a pair that they may have: that of the loss and of the slope relative to the function
# itself, that of the curvature, which may cross zero, relative to its largest value.
_WIDTHS = {False: (1.0, 0.5, 0.25), True: (0.25, 0.125, 0.0625)}
_BUCKET_ERROR = {False: 2e-7, True: 5e-13}
_OFFSETS = np.linspace(-0.5, 0.5, 9)
_EVERYWHERE = np.linspace(-256.0, 256.0, 2049)  # in widths
_DISTANCES = np.array([1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 256])


class SmoothForm(NamedTuple):
    """A smooth surrogate as ``_native.evaluate`` takes it.

    Attributes
    ----------
    term : (shift, rate, b0, b1, b2, linear, width)
        ``b0 + b1 d + b2 d^2`` where d > 0; `linear`: some powers have a factor |d|; `width`: of the
        buckets, a power of two, or 0 if the function is not smooth enough for buckets.
    value, slope, curvature : (2, K, 2) float64
        By side and power: the coefficients of ``exp(-k rate |d|)``, and of the same times |d|. K
        differs between the three.
    series : (2, 8, K) float64 or None
        The coefficients of the polynomials in u of degree 7 that replace ``exp(-k rate width u)``,
        and the same times u, for offsets u of at most half a width.
    inside : (3, 8, 8) float64 or None
        By order of the derivative: the coefficients of the polynomial in the offsets of a negative
        and of a positive, in widths, that replaces the function if both are in one bucket.
    """

    term: tuple[float, float, float, float, float, bool, float]
    value: _Floats
    slope: _Floats
    curvature: _Floats
    series: _Floats | None
    inside: _Floats | None


def smooth_form(table: Table, wide: bool, hess: bool) -> SmoothForm | None:
    """Return the form of a smooth term for float64 scores (`wide`) or float32; None without one.

    With `hess`, the buckets must be good enough for the Hessian diagonal too.
    """
    n_powers = table.n_powers(0, 1, 2)
    if table.p[:, 0].any() or not 0 < n_powers <= _MOST_POWERS:
        return None
    b0, b1, b2 = table.p[0, 1].tolist()
    linear = bool(table.e.any())
    c, e = table.c * table.units, table.e * table.units * table.rate
    value, slope, curvature = (
        np.stack([c[k], e[k]], -1)[:, : max(1, table.n_powers(k))].copy() for k in range(3)
    )
    orders = value, slope, curvature
    for share in _WIDTHS[wide]:
        buckets = _Buckets(table, orders, share)
        with np.errstate(all="ignore"):
            good = all(buckets.error(order) <= _BUCKET_ERROR[wide] for order in range(2 + hess))
        if good:
            inside = np.stack([buckets.inside(order) for order in range(3)])
            term = (table.shift, table.rate, b0, b1, b2, linear, buckets.width)
            return SmoothForm(term, *orders, buckets.series, inside)
    term = (table.shift, table.rate, b0, b1, b2, linear, 0.0)
    return SmoothForm(term, *orders, None, None)


class _Buckets:
    """Polynomials in the offsets of rows, by interpolation at the Chebyshev nodes of a bucket."""

    def __init__(self, table: Table, orders: tuple[_Floats, ...], share: float) -> None:
        exponent = math.floor(math.log2(share) - math.log2(table.rate))
        self.width = 2.0 ** min(max(exponent, -1000), 1000)
        self._orders, self._polynomials = orders, table.p[:, 1]
        n_powers = max(a.shape[1] for a in self._orders)
        self._exponents = table.rate * self.width * np.arange(1, n_powers + 1)
        self._nodes = chebyshev.chebpts1(_MOMENTS) / 2.0
        # Maps values at the nodes to coefficients of powers.
        values = chebyshev.chebvander(2.0 * self._nodes, _MOMENTS - 1)
        to_chebyshev = 2.0 / _MOMENTS * values.T
        to_chebyshev[0] /= 2.0
        powers = [chebyshev.cheb2poly(row) for row in np.eye(_MOMENTS)]
        self._fit = np.zeros((_MOMENTS, _MOMENTS))
        for k, power in enumerate(powers):
            self._fit += np.outer(
                np.pad(power, (0, _MOMENTS - len(power))) * 2.0 ** np.arange(_MOMENTS),
                to_chebyshev[k],
            )
        exponentials = np.exp(-np.outer(self._nodes, self._exponents))
        self.series = np.stack(
            [self._fit @ exponentials, self._fit @ (self._nodes[:, None] * exponentials)]
        )

    def inside(self, order: int) -> _Floats:
        """Return the polynomial in the offsets of a negative and of a positive of one bucket."""
        values = self._function(order, self._nodes[:, None] - self._nodes)
        polynomial: _Floats = self._fit @ values @ self._fit.T
        return polynomial

    def error(self, order: int) -> float:
        """Return the largest error of a pair, inside a bucket and between buckets.

        It is relative to the function, and NaN or infinite where that is 0; for the curvature it is
        relative to the largest value.
        """
        powers = _OFFSETS[:, None] ** np.arange(_MOMENTS)
        expected = self._function(order, _OFFSETS[:, None] - _OFFSETS)
        largest = abs(self._function(order, _EVERYWHERE)).max() if order == 2 else 0.0
        size = np.maximum(abs(expected), largest)
        found = [(abs(powers @ self.inside(order) @ powers.T - expected) / size).max()]
        a = self._orders[order]
        near, offset = (powers @ series[:, : a.shape[1]] for series in self.series)
        # Distances of the centres, offsets of the row and of the source, both away from the other.
        between = _DISTANCES[:, None, None] + _OFFSETS[:, None] + _OFFSETS
        decay = np.exp(-np.outer(_DISTANCES, self._exponents[: a.shape[1]]))[:, None]
        sums, distances = decay * near, decay * (offset + _DISTANCES[:, None, None] * near)
        for side, sign in ((0, -1.0), (1, 1.0)):
            c, e = a[side, :, 0], a[side, :, 1] * self.width
            total = (near * c + offset * e) @ sums.swapaxes(1, 2)
            total += (near * e) @ distances.swapaxes(1, 2)
            if side:
                total += self._polynomial(order, between)
            expected = self._function(order, sign * between)
            size = np.maximum(abs(expected), largest)
            found.append((abs(total - expected) / size).max())
        return float(np.max(found))

    def _function(self, order: int, t: _Floats) -> _Floats:
        """Evaluate a derivative at ``d = t * width``."""
        size, a = abs(t)[..., None], self._orders[order]
        x = np.exp(-size * self._exponents[: a.shape[1]])
        below, above = (
            ((side[:, 0] + side[:, 1] * self.width * size) * x).sum(axis=-1) for side in a
        )
        found: _Floats = np.where(t > 0.0, above + self._polynomial(order, t), below)
        return found

    def _polynomial(self, order: int, t: _Floats) -> _Floats:
        c0, c1, c2 = self._polynomials[order]
        d = self.width * t
        polynomial: _Floats = c0 + d * (c1 + d * c2)
        return polynomial
