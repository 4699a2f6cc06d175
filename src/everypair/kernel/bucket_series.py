"""The form in which the compiled kernel takes a smooth surrogate.

The kernel takes one smooth term and a truncated polynomial with the same shift. That covers the
built-in surrogates and those of `surrogates.fit`. For buckets of rows, polynomials in the offsets
inside a bucket replace the exponential functions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev, polynomial
from numpy.typing import NDArray

from everypair.surrogates import Table

_Floats = NDArray[np.float64]

_MOST_POWERS = 24
# For float32 and for float64 scores: the largest widths of buckets to try, in temperatures, and the
# error of a pair that they may have: that of the loss and of the slope relative to the function
# itself, that of the curvature, which may cross zero, relative to its largest value.
_WIDTHS = {False: (1.0, 0.5, 0.25), True: (0.25, 0.125, 0.0625)}
_BUCKET_ERROR = {False: 2e-7, True: 5e-13}
_OFFSETS = np.linspace(-0.5, 0.5, 9)
_POWERS = _OFFSETS[:, None] ** np.arange(8)
_EVERYWHERE = np.linspace(-256.0, 256.0, 2049)  # in widths
_DISTANCES = np.array([1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 256])
# The Chebyshev nodes of a bucket, and the matrix from values there to coefficients of powers.
_NODES = chebyshev.chebpts1(8) / 2.0
_FIT = np.linalg.inv(np.vander(_NODES, increasing=True))


class SmoothForm(NamedTuple):
    """A smooth surrogate as ``_native.evaluate`` takes it."""

    # Shift, rate, b0, b1, b2, linear and width: ``b0 + b1 d + b2 d^2`` where d > 0; whether some
    # powers have a factor |d|; the width of the buckets, a power of two, or 0 if the function is
    # not smooth enough for buckets.
    term: tuple[float, float, float, float, float, bool, float]
    # (2, K, 2) by side and power: the coefficients of ``exp(-k rate |d|)``, and of the same times
    # |d|. K differs between the three.
    value: _Floats
    slope: _Floats
    curvature: _Floats
    # (2, 8, K): the coefficients of the polynomials in u of degree 7 that replace
    # ``exp(-k rate width u)``, and the same times u, for offsets u of at most half a width.
    series: _Floats | None
    # (3, 8, 8) by order of the derivative: the coefficients of the polynomial in the offsets of a
    # negative and of a positive, in widths, that replaces the function inside one bucket.
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
    width, series, inside = 0.0, None, None
    for share in _WIDTHS[wide]:
        buckets = _Buckets(table, orders, share)
        with np.errstate(all="ignore"):
            errors = [buckets.error(order) for order in range(2 + hess)]
        if np.less_equal(errors, _BUCKET_ERROR[wide]).all():
            width, series, inside = buckets.width, buckets.series, buckets.inside
            break
    term = (table.shift, table.rate, b0, b1, b2, linear, width)
    return SmoothForm(term, *orders, series, inside)


class _Buckets:
    """Polynomials in the offsets of rows, which interpolate at the nodes of a bucket."""

    def __init__(self, table: Table, orders: tuple[_Floats, ...], share: float) -> None:
        exponent = math.floor(math.log2(share) - math.log2(table.rate))
        self.width = 2.0 ** min(max(exponent, -1000), 1000)
        self._orders, self._polynomials = orders, table.p[:, 1]
        n_powers = max(a.shape[1] for a in orders)
        self._exponents = table.rate * self.width * np.arange(1, n_powers + 1)
        exponentials = np.exp(-np.outer(_NODES, self._exponents))
        self.series = np.stack([_FIT @ exponentials, _FIT @ (_NODES[:, None] * exponentials)])
        values = [self._function(order, _NODES[:, None] - _NODES) for order in range(3)]
        self.inside: _Floats = _FIT @ np.stack(values) @ _FIT.T

    def error(self, order: int) -> float:
        """Return the largest error of a pair, inside a bucket and between buckets.

        It is relative to the function, and NaN or infinite where that is 0; for the curvature it is
        relative to the largest value.
        """
        approximations = [(_OFFSETS[:, None] - _OFFSETS, _POWERS @ self.inside[order] @ _POWERS.T)]
        a = self._orders[order]
        near, offset = (_POWERS @ series[:, : a.shape[1]] for series in self.series)
        # Distances of the centres, offsets of the row and of the source, both away from the other.
        between = _DISTANCES[:, None, None] + _OFFSETS[:, None] + _OFFSETS
        decay = np.exp(-np.outer(_DISTANCES, self._exponents[: a.shape[1]]))[:, None]
        sums, distances = decay * near, decay * (offset + _DISTANCES[:, None, None] * near)
        for side, sign in ((0, -1.0), (1, 1.0)):
            c, e = a[side, :, 0], a[side, :, 1] * self.width
            total = (near * c + offset * e) @ sums.swapaxes(1, 2)
            total += (near * e) @ distances.swapaxes(1, 2)
            total += side * self._polynomial(order, between)
            approximations.append((sign * between, total))
        largest = abs(self._function(order, _EVERYWHERE)).max() if order == 2 else 0.0
        errors = []
        for t, approximation in approximations:
            expected = self._function(order, t)
            size = np.maximum(abs(expected), largest)
            errors.append((abs(approximation - expected) / size).max())
        return float(np.max(errors))

    def _function(self, order: int, t: _Floats) -> _Floats:
        """Evaluate a derivative at ``d = t * width``."""
        size, a = abs(t)[..., None], self._orders[order]
        x = np.exp(-size * self._exponents[: a.shape[1]])
        below, above = (
            ((side[:, 0] + side[:, 1] * self.width * size) * x).sum(axis=-1) for side in a
        )
        function: _Floats = np.where(t > 0.0, above + self._polynomial(order, t), below)
        return function

    def _polynomial(self, order: int, t: _Floats) -> _Floats:
        value: _Floats = polynomial.polyval(self.width * t, self._polynomials[order])
        return value
