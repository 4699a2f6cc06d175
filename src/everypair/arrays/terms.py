"""The terms of a surrogate as the pair sums take them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everypair.surrogates import KnotTerm


class Terms(NamedTuple):
    """Polynomials ``b0 + b1 d + b2 d^2`` in ``d = s_neg + shift - s_pos``, one entry per term.

    Factors are tuples of floats, or what a library makes of them. A coefficient that is zero in
    every term is None.

    `reach` and `far` are None unless the squares of several truncated terms cancel beyond all
    knots, as those of the Huber hinge do. There the sum of the terms is linear with the slope
    `far`, and all knots lie within `reach` of each other.
    """

    shift: Any
    b0: Any
    b1: Any
    b2: Any
    reach: Any = None
    far: Any = None


def split(terms: Sequence[KnotTerm]) -> tuple[Terms | None, Terms | None]:
    """Return the terms with a knot, largest shift first, and the sum of those without.

    Either is None where there is none.
    """
    hinged = sorted((term for term in terms if term[4]), key=lambda term: -term[0])
    others = [term for term in terms if not term[4]]
    everywhere = None
    if others:  # their shift is the margin, so their coefficients add up
        sums = (math.fsum(b) for b in list(zip(*others, strict=True))[1:4])
        everywhere = Terms((others[0][0],), *((b,) if b else None for b in sums))
    if not hinged:
        return None, everywhere
    shift, *coefficients, _ = zip(*hinged, strict=True)
    b0, b1, b2 = (b if any(b) else None for b in coefficients)
    reach = far = None
    if len(hinged) > 1 and math.fsum(coefficients[2]) == 0.0:
        reach = (2.0 * (shift[0] - shift[-1]),)
        lags = [2.0 * b * (s - shift[0]) for s, b in zip(shift, coefficients[2], strict=True)]
        far = (math.fsum([*coefficients[1], *lags]),)
    return Terms(shift, b0, b1, b2, reach, far), everywhere
