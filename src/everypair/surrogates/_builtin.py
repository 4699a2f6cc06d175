r"""The built-in surrogates, and their names.

With :math:`u = t / T` and :math:`x = e^{-|u|}`, the smooth ones are

- logistic: :math:`\log(1 + e^u) = \max(u, 0) + \log(1 + x)`;
- sigmoid: :math:`1 / (1 + e^{-u}) = x / (1 + x)` for :math:`u \le 0`, else
  :math:`1 - x / (1 + x)`;
- squared softplus: the square of the first,
  :math:`\max(u, 0)^2 + 2 \max(u, 0) \log(1 + x) + \log(1 + x)^2`;
- exponential: :math:`e^u`.

The parts in u alone are truncated polynomials. Those in x are replaced by polynomials whose
relative error is proven in `_polynomials`. Wherever a fit is subtracted from a polynomial part, the
difference is at least a third of the fit, so the relative error grows by at most that.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from everypair.surrogates import _polynomials as exact
from everypair.surrogates._surrogate import Surrogate
from everypair.surrogates._terms import ExponentialTerm, Fit, Fits, Powers, SmoothTerm, Term, finite

SQUARE = Surrogate("square", (Term(0.0, 0.0, 1.0),))
SQUARED_HINGE = Surrogate("squared_hinge", (Term(0.0, 0.0, 1.0, knot=0.0),))
LINEAR_HINGE = Surrogate("linear_hinge", (Term(0.0, 1.0, 0.0, knot=0.0),))
HUBER_HINGE = Surrogate(
    "huber_hinge", (Term(0.0, 0.0, 0.5, knot=0.0), Term(-0.5, 1.0, -0.5, knot=1.0))
)

# Degrees of the fits of (1 + x)^-1, (1 + x)^-2 and (1 + x)^-3. Their relative errors are at most
# 4.5e-8 for float32 scores, and 3.4e-14 for float64 scores.
_LOW, _HIGH = (9, 11, 12), (17, 19, 21)
_Degrees = tuple[int, int, int]


def logistic(temperature: float = 1.0) -> Surrogate:
    """Make the pairwise logistic loss ``log(1 + exp(t / temperature))``; default margin 0.

    Also known as RankNet, BPR or PairLogit.

    Examples
    --------
    >>> logistic(temperature=0.5).slope([0.0])
    array([1.])
    """
    return _at_temperature(_logistic, temperature)


def sigmoid(temperature: float = 1.0) -> Surrogate:
    """Make the sigmoid loss ``1 / (1 + exp(-t / temperature))``; default margin 0.

    It is bounded and not convex. At margin 0, the losses of a pair and of the pair with swapped
    labels add up to 1, which makes it robust to symmetric label noise.

    Examples
    --------
    >>> sigmoid().value([0.0])
    array([0.5])
    """
    return _at_temperature(_sigmoid, temperature)


def exponential(temperature: float = 1.0) -> Surrogate:
    """Make the exponential loss ``exp(t / temperature)`` (RankBoost); default margin 0.

    It exceeds the range of float64 for shortfalls above 709 temperatures, which raises an
    OverflowError; on an accelerator and in JAX, the loss is infinite.

    Examples
    --------
    >>> exponential().value([0.0])
    array([1.])
    """
    return _at_temperature(_exponential, temperature)


def squared_softplus(temperature: float = 1.0) -> Surrogate:
    """Make the smooth squared hinge ``log(1 + exp(t / temperature))^2``; default margin 0.

    Examples
    --------
    >>> squared_softplus().value([0.0]).round(4)
    array([0.4805])
    """
    return _at_temperature(_squared_softplus, temperature)


@lru_cache(maxsize=1)
def _logistic() -> Surrogate:
    def fits(degrees: _Degrees) -> Fits:
        value, slope = exact.log_ratio(degrees[0]), exact.inverse_power(1, degrees[0])
        curvature = exact.inverse_power(2, degrees[1])
        return Fits(_even(value), _odd(slope), _even(curvature))

    terms = (Term(0.0, 1.0, 0.0, knot=0.0), SmoothTerm(1.0, fits(_LOW), fits(_HIGH)))
    return Surrogate("logistic", terms, default_margin=0.0)


@lru_cache(maxsize=1)
def _sigmoid() -> Surrogate:
    def fits(degrees: _Degrees) -> Fits:
        value, slope, cube = (
            exact.inverse_power(p, d) for p, d in zip((1, 2, 3), degrees, strict=True)
        )
        # x (1 - x) / (1 + x)^3. Near x = 1 its powers cancel, and floats keep an absolute error.
        curvature = exact.times_polynomial(cube, 1, -1)
        return Fits(_odd(value), _even(slope), _odd(curvature))

    terms = (Term(1.0, 0.0, 0.0, knot=0.0), SmoothTerm(1.0, fits(_LOW), fits(_HIGH)))
    return Surrogate("sigmoid", terms, default_margin=0.0)


@lru_cache(maxsize=1)
def _exponential() -> Surrogate:
    return Surrogate("exponential", (ExponentialTerm(1.0),), default_margin=0.0)


@lru_cache(maxsize=1)
def _squared_softplus() -> Surrogate:
    def fits(degrees: _Degrees, error: float) -> Fits:
        # In the notation of the formulas below, L = log(1 + x) / x and R = 1 / (1 + x).
        log, inverse = exact.log_ratio(degrees[0] + 1), exact.inverse_power(1, degrees[0] + 1)
        square = exact.inverse_power(2, degrees[1] + 2)
        # The smallest values of L^2, L R and L R^2 are those at x = 1.
        log_square = exact.economised(exact.product(log, log), error, Fraction(12, 25))
        log_inverse = exact.economised(exact.product(log, inverse), error, Fraction(17, 50))
        log_inverse_square = exact.economised(exact.product(log, square), error, Fraction(17, 100))
        # value: L^2 x^2, and u^2 + 2 u L x + L^2 x^2
        c = exact.times_polynomial(log_square, 0, 1)
        value = _fit(c, c, exact.times_polynomial(log, 2))
        # slope: 2 L R x^2, and 2 u - 2 u R x + 2 L R x
        slope = _fit(
            exact.times_polynomial(log_inverse, 0, 2),
            exact.times_polynomial(log_inverse, 2),
            exact.times_polynomial(inverse, -2),
        )
        # curvature: 2 (R^2 + L R^2) x^2, and 2 - 2 x (2 + x) R^2 + 2 L R^2 x^2 + 2 u R^2 x
        c = exact.times_polynomial(log_inverse_square, 0, 2)
        curvature = _fit(
            exact.plus(exact.times_polynomial(square, 0, 2), c),
            exact.plus(exact.times_polynomial(square, -4, -2), c),
            exact.times_polynomial(square, 2),
            growth=3.0,
        )
        return Fits(value, slope, curvature)

    smooth = SmoothTerm(1.0, fits(_LOW, 2e-8), fits(_HIGH, 2e-14))
    return Surrogate(
        "squared_softplus", (Term(0.0, 0.0, 1.0, knot=0.0), smooth), default_margin=0.0
    )


def _even(a: exact.Approximation) -> Fit:
    """Return the function a(x) x on both sides."""
    return Fit(_powers(a), _powers(a), float(a.bound))


def _odd(a: exact.Approximation) -> Fit:
    """Return the function a(x) x for u <= 0, and -a(x) x for u > 0."""
    return Fit(_powers(a), _powers(exact.times_polynomial(a, -1)), float(a.bound))


def _fit(
    below: exact.Approximation,
    above: exact.Approximation,
    linear: exact.Approximation,
    growth: float = 1.0,
) -> Fit:
    """Return the function below(x) x for u <= 0, and (above(x) + u linear(x)) x for u > 0."""
    c, e = (dict(enumerate(map(float, a.coefficients))) for a in (above, linear))
    pairs = tuple((c.get(k, 0.0), e.get(k, 0.0)) for k in range(max(len(c), len(e))))
    bound = growth * float(max(a.bound for a in (below, above, linear)))
    return Fit(_powers(below), pairs, bound)


def _powers(a: exact.Approximation) -> Powers:
    return tuple((float(c), 0.0) for c in a.coefficients)


def _at_temperature(make: Callable[[], Surrogate], temperature: float) -> Surrogate:
    number = finite(temperature, "temperature")
    if number <= 0.0:
        raise ValueError(
            f"temperature must be above 0; got {temperature!r}. It is the difference of scores "
            "over which the loss bends."
        )
    return make() if number == 1.0 else _scaled(make, number)


@lru_cache(maxsize=64)
def _scaled(make: Callable[[], Surrogate], temperature: float) -> Surrogate:
    surrogate = make()
    name = f"{surrogate.name}(temperature={temperature!r})"
    return surrogate.scaled(1.0 / temperature, name=name)


_BY_NAME = {s.name: s for s in (SQUARE, SQUARED_HINGE, LINEAR_HINGE, HUBER_HINGE)}
# Made at their first use, because the exact arithmetic of their coefficients takes milliseconds.
_SMOOTH = {
    "logistic": _logistic,
    "sigmoid": _sigmoid,
    "exponential": _exponential,
    "squared_softplus": _squared_softplus,
}


def get(surrogate: str | Surrogate) -> Surrogate:
    """Return the built-in surrogate of a name. A `Surrogate` is returned unchanged.

    Examples
    --------
    >>> get("square") is SQUARE
    True
    """
    if isinstance(surrogate, Surrogate):
        return surrogate
    instance = _BY_NAME.get(surrogate) if type(surrogate) is str else None
    if instance is None and type(surrogate) is str and surrogate in _SMOOTH:
        instance = _BY_NAME.setdefault(surrogate, _SMOOTH[surrogate]())
    if instance is not None:
        return instance
    import difflib  # imported here because it is slow to load and needed for this message only

    close = difflib.get_close_matches(str(surrogate).lower().replace("-", "_"), names(), n=1)
    raise ValueError(
        f"surrogate must be one of {', '.join(map(repr, names()))}, or a Surrogate; "
        f"got {surrogate!r}." + (f" Did you mean {close[0]!r}?" if close else "")
    )


def names() -> tuple[str, ...]:
    """Return the names of the built-in surrogates.

    Examples
    --------
    >>> names()[:4]
    ('square', 'squared_hinge', 'linear_hinge', 'huber_hinge')
    >>> names()[4:]
    ('logistic', 'sigmoid', 'exponential', 'squared_softplus')
    """
    return ("square", "squared_hinge", "linear_hinge", "huber_hinge", *_SMOOTH)
