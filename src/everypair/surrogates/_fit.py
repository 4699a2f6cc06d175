"""Fit a smooth function of your own by polynomials in exp(-rate |t|)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial import Polynomial, chebyshev
from numpy.typing import NDArray

from everypair.surrogates._surrogate import Surrogate
from everypair.surrogates._terms import AnyTerm, Fit, Fits, Powers, SmoothTerm, Term, finite

_Function = Callable[[Any], Any]
_Polynomial = tuple[float, float, float]

_MAX_POWERS = 32
_FLOAT32 = 5e-8  # a lower tolerance would not show in float32
_POINTS = 4001


def fit(
    function: _Function,
    tolerance: float = 1e-12,
    *,
    slope: _Function | None = None,
    curvature: _Function | None = None,
    rate: float = 1.0,
    below: _Polynomial = (0.0, 0.0, 0.0),
    above: _Polynomial = (0.0, 0.0, 0.0),
    name: str | None = None,
    default_margin: float = 0.0,
) -> Surrogate:
    r"""Make a surrogate from a smooth function of the shortfall.

    On either side of t = 0, the difference of the function and a polynomial is replaced by

    .. math:: \sum_{k=1}^{K} c_k x^k, \qquad x = e^{-\mathrm{rate} |t|}

    by Chebyshev interpolation in x, with the smallest K that reaches the tolerance. This converges
    for functions that approach a polynomial exponentially, with multiples of the rate, such as
    functions of ``exp(-rate * abs(t))``. The function may have a kink or a jump at 0.

    Parameters
    ----------
    function : callable
        Maps an array of shortfalls to an array of the same shape. It is also called with
        ``numpy.longdouble``, where it should keep the precision.
    tolerance : float
        The largest allowed error, relative to ``max(abs(function(t)), exp(-rate * abs(t)))``; at
        least 1e-13. It is checked at thousands of shortfalls on either side.
    slope, curvature : callable, optional
        The first two derivatives. Each is then fitted to the same tolerance. Otherwise they are the
        derivatives of the fit, whose error is larger by some multiple of the rate.
    rate : float
        The rate at which the function approaches the polynomials.
    below, above : (3,) floats
        The coefficients c0, c1, c2 of the polynomials ``c0 + c1 t + c2 t^2`` that the function
        approaches for t to minus infinity, and for t to infinity.
    name : str, optional
        The name of the surrogate; by default that of the function.
    default_margin : float
        The margin that ``margin=None`` stands for.

    Returns
    -------
    Surrogate
        ``terms[-1].high.value.bound`` is the error that was found.

    Raises
    ------
    ValueError
        If 32 powers do not reach the tolerance. The message says why.

    Examples
    --------
    The hyperbolic tangent approaches -1 and 1 as exp(-2 \|t\|) does:

    >>> import numpy as np
    >>> from everypair.surrogates import fit
    >>> mine = fit(np.tanh, rate=2.0, below=(-1, 0, 0), above=(1, 0, 0))
    >>> bool(np.allclose(mine.value([-3.0, 0.0, 0.5]), np.tanh([-3.0, 0.0, 0.5]), atol=1e-12))
    True

    The Laplace density is one power of exp(-\|t\|):

    >>> laplace = fit(lambda t: np.exp(-abs(t)) / 2, name="laplace")
    >>> len(laplace.terms[0].high.value.above)
    1
    """
    tolerance, rate = finite(tolerance, "tolerance"), finite(rate, "rate")
    if tolerance < 1e-13 or rate <= 0.0:
        raise ValueError(
            "tolerance must be at least 1e-13, because float64 has 16 digits, and rate above 0; "
            f"got tolerance={tolerance!r} and rate={rate!r}."
        )
    own_name = getattr(function, "__name__", "<fit>")
    label = name or ("fit" if own_name.startswith("<") else own_name)
    limits = [tuple(finite(c, "below and above") for c in limit) for limit in (below, above)]
    functions = (function, slope, curvature)

    def fits(max_error: float) -> Fits:
        results: list[Fit] = []
        for order, derivative in enumerate(functions):
            if derivative is None:
                results.append(_derived(results[-1]))
                continue
            sides = [
                _side(derivative, _derivatives(limit)[order], sign, rate, order, max_error, label)
                for sign, limit in zip((-1.0, 1.0), limits, strict=True)
            ]
            results.append(Fit(sides[0][0], sides[1][0], max(error for _, error in sides)))
        return Fits(*results)

    smooth = SmoothTerm(rate, fits(max(tolerance, _FLOAT32)), fits(tolerance))
    terms: list[AnyTerm] = []
    if any(limits[0]):
        terms.append(Term(*limits[0]))
    c0, c1, c2 = (b - a for a, b in zip(*limits, strict=True))
    if c0 or c1 or c2:
        terms.append(Term(c0, c1, c2, knot=0.0))
    return Surrogate(label, (*terms, smooth), default_margin)


def _side(
    function: _Function,
    limit: tuple[float, ...],
    sign: float,
    rate: float,
    order: int,
    tolerance: float,
    name: str,
) -> tuple[Powers, float]:
    """Return the powers of the lowest degree that reach the tolerance, and their error."""
    distances = np.concatenate([np.linspace(0.0, 40.0, _POINTS), np.geomspace(1e-9, 300.0, 400)])
    t, x = sign * distances / rate, np.exp(-distances)
    expected = np.asarray(function(t.astype(np.longdouble)))
    if expected.shape != t.shape or not np.isfinite(expected).all():
        raise ValueError(
            f"function must return finite values of the shape of its argument; {name!r} does not."
        )

    def remainder(x: NDArray[Any]) -> Any:
        """Return the function less its limit, over x, in derivatives by u = rate t."""
        t = -sign * np.log(x) / rate
        scale = x * np.longdouble(rate) ** order
        return (np.asarray(function(t)) - _polynomial(limit, t)) / scale

    smallest = np.inf
    for degree in (*range(12), *range(12, _MAX_POWERS, 2)):
        coefficients = _interpolated(remainder, degree)
        sums = np.zeros_like(x)
        for c in reversed(coefficients):
            sums = (sums + c) * x
        errors = abs(sums * rate**order + _polynomial(limit, t) - expected)
        error = float((errors / np.maximum(abs(expected), x)).max())
        if error <= tolerance:
            return tuple((c, 0.0) for c in coefficients), error
        smallest = min(smallest, error)
    tail = float(abs(remainder(np.exp(np.array([-20.0], dtype=np.longdouble))))[0])
    if tail > 1e6:
        side = f"{'below' if sign < 0 else 'above'}={limit}"
        cause = f"it does not approach {side} as fast as exp(-rate |t|) with rate={rate:g}"
    else:
        cause = f"its series in exp(-rate |t|) converges too slowly with rate={rate:g}"
    raise ValueError(
        f"{('function', 'slope', 'curvature')[order]} must be the sum of a polynomial and of few "
        f"powers of exp(-rate |t|); {name!r} has an error of {smallest:.2g} with up to "
        f"{_MAX_POWERS} powers, and {tolerance:g} is allowed: {cause}. Try another rate, or allow "
        "a larger tolerance."
    )


def _interpolated(function: Callable[[NDArray[Any]], NDArray[Any]], degree: int) -> list[float]:
    """Return the coefficients of powers of x of the polynomial through the Chebyshev nodes."""
    angles = (
        (np.arange(degree + 1, dtype=np.longdouble) + 0.5) * np.longdouble(np.pi) / (degree + 1)
    )
    y = np.cos(angles)
    values = function((1 + y) / 2)
    factors = [
        (2 if k else 1) / np.longdouble(degree + 1) * (values * np.cos(k * angles)).sum()
        for k in range(degree + 1)
    ]
    y_of_x: Any = Polynomial(np.array([-1, 2], dtype=np.longdouble))
    powers: Any = chebyshev.chebval(y_of_x, np.array(factors, dtype=np.longdouble))
    return [float(c) for c in powers.coef[: degree + 1]]


def _derivatives(limit: tuple[float, ...]) -> list[tuple[float, ...]]:
    c0, c1, c2 = limit
    return [(c0, c1, c2), (c1, 2 * c2, 0.0), (2 * c2, 0.0, 0.0)]


def _polynomial(limit: tuple[float, ...], t: NDArray[Any]) -> Any:
    c0, c1, c2 = limit
    return c0 + t * (c1 + t * c2)


def _derived(of: Fit) -> Fit:
    """Return the derivative by u of a fit: that of x^k is k x^k below 0, and -k x^k above."""
    below, above = (
        tuple((sign * k * c, 0.0) for k, (c, _) in enumerate(powers, start=1))
        for sign, powers in ((1.0, of.below), (-1.0, of.above))
    )
    return Fit(below, above, np.inf)
