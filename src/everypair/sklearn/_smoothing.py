"""Smooth a surrogate whose slope jumps, because Newton's method needs a continuous slope."""

from __future__ import annotations

import numpy as np

from everypair.surrogates import ExponentialTerm, SmoothTerm, Surrogate, Term

# Widths over which a kink is smoothed. Each fit starts from the previous one's result.
_WIDTHS = (1.0, 0.1, 0.01, 0.001)
# Jumps below this are rounding errors of coefficients.
_ROUNDING = 1e-9


def stages(surrogate: Surrogate, width: float) -> list[Surrogate]:
    """Return the surrogates to minimise one after the other: itself, if its slope has no jump.

    Otherwise its jumps are smoothed over smaller and smaller parts of `width`.

    Examples
    --------
    >>> from everypair.surrogates import HUBER_HINGE, LINEAR_HINGE
    >>> len(stages(LINEAR_HINGE, 1.0)), stages(HUBER_HINGE, 1.0) == [HUBER_HINGE]
    (4, True)
    """
    knots = [term.knot for term in surrogate.terms if isinstance(term, Term)]
    ends = np.array([(knot, np.nextafter(knot, np.inf)) for knot in knots if knot is not None])
    if (np.abs(np.diff(surrogate.value(ends))) > _ROUNDING).any():
        raise ValueError(
            f"surrogate must be continuous to be minimised; {surrogate.name!r} jumps at a knot. "
            "Choose the coefficients of each Term so that it is zero at its own knot."
        )
    if not (np.abs(np.diff(surrogate.slope(ends))) > _ROUNDING).any():
        return [surrogate]
    return [smoothed(surrogate, share * width) for share in _WIDTHS]


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
    for term in surrogate.terms:
        if not isinstance(term, Term) or term.knot is None:
            terms.append(term)
            continue
        knot, slope = term.knot, term.c1 + 2.0 * term.c2 * term.knot
        if abs(slope) <= _ROUNDING:
            terms.append(term)
            continue
        c = 0.5 * slope / width
        hinges = (term.c2, knot), (c, knot - 0.5 * width), (-c, knot + 0.5 * width)
        terms += [Term(c * k * k, -2.0 * c * k, c, knot=k) for c, k in hinges if c]
    return Surrogate(f"{surrogate.name}, smoothed", tuple(terms))
