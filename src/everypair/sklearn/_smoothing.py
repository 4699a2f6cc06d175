"""Smooth a surrogate whose slope jumps, because Newton's method needs a continuous slope."""

from __future__ import annotations

import numpy as np

from everypair.surrogates import ExponentialTerm, SmoothTerm, Surrogate, Term


def has_kinks(surrogate: Surrogate) -> bool:
    """Return whether the slope jumps at some knot; raise an error if the value itself jumps.

    Examples
    --------
    >>> from everypair.surrogates import HUBER_HINGE, LINEAR_HINGE
    >>> has_kinks(LINEAR_HINGE), has_kinks(HUBER_HINGE)
    (True, False)
    """
    jumps = [(t.b0, t.b1) for t in surrogate.at_knots(0.0) if t.truncated]
    if not surrogate.is_polynomial:
        # A smooth term may complete a truncated one, so that their sum does not jump.
        knots = [t.knot for t in surrogate.terms if isinstance(t, Term) and t.knot is not None]
        ends = [np.array([knot, np.nextafter(knot, np.inf)]) for knot in knots]
        jumps = [(np.ptp(surrogate.value(t)), np.ptp(surrogate.slope(t))) for t in ends]
    if any(abs(b0) > 1e-9 for b0, _ in jumps):
        raise ValueError(
            f"surrogate must be continuous to be minimised; {surrogate.name!r} jumps at a knot. "
            "Choose the coefficients of each Term so that it is zero at its own knot."
        )
    return any(abs(b1) > 1e-9 for _, b1 in jumps)


def smoothed(surrogate: Surrogate, width: float) -> Surrogate:
    """Replace each jump of the slope by a linear ramp of this width, centred at the knot.

    The value changes by at most ``jump * width / 8``, and only for shortfalls inside a ramp.

    Examples
    --------
    >>> from everypair.surrogates import LINEAR_HINGE
    >>> smoothed(LINEAR_HINGE, 0.5).value([-0.25, 0.0, 0.25, 1.0])
    array([0.    , 0.0625, 0.25  , 1.    ])
    """
    terms: list[Term | SmoothTerm | ExponentialTerm] = []
    at_knots = iter(surrogate.at_knots(0.0))
    for term in surrogate.terms:
        at_knot = next(at_knots) if isinstance(term, Term) else None
        if not isinstance(term, Term) or term.knot is None or at_knot is None or at_knot.b1 == 0.0:
            terms.append(term)
            continue
        if term.c2:
            terms.append(_squared_hinge(term.c2, term.knot))
        c = at_knot.b1 / (2.0 * width)
        terms.append(_squared_hinge(c, term.knot - 0.5 * width))
        terms.append(_squared_hinge(-c, term.knot + 0.5 * width))
    return Surrogate(f"{surrogate.name}, smoothed", tuple(terms))


def _squared_hinge(c: float, knot: float) -> Term:
    """Return ``c * max(t - knot, 0)**2``."""
    return Term(c * knot * knot, -2.0 * c * knot, c, knot=knot)
