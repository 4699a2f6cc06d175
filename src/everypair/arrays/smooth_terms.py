"""Sums over all pairs of the smooth terms of a surrogate.

A smooth term is a polynomial in exp(-rate |d|) on either side of d = 0. On the line of its shift
(see `line`), a row finds the pairs with d > 0 on one side of itself and those with d <= 0 on the
other, as running sums in the two directions (`exponential_sums`).

The error: a polynomial deviates from the function by a relative error that `surrogates` proves, for
every pair. Where all pairs have slopes of one sign, as for every increasing surrogate, a sum of
them has no larger relative error. So the bound holds for the loss and for each entry of the
gradient; rounding adds less than 1e-12 in float64.
"""

from __future__ import annotations

from functools import reduce
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from everypair.arrays.double_double import Number, each
from everypair.arrays.exponential_sums import exponential_sums
from everypair.arrays.line import Tracks
from everypair.arrays.rows import Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everypair.arrays.line import Line
    from everypair.arrays.rows import Rows, Targets
    from everypair.arrays.terms import Smooth

    Array = Any


class SmoothTerm(Part):
    """The sums of one smooth term."""

    def __init__(self, rows: Rows, term: Smooth, line: Line) -> None:
        self.xp, self._rows, self._term, self._line = line.xp.plain(), rows, term, line
        self._tracks = Tracks(line)
        self._position = self._tracks.of(line.position, each(lambda part: -part, line.position))

    def sums(self, source: Number | None, orders: Sequence[int], to: Targets) -> list[Number]:
        """See `Part`."""
        xp, line, tracks, (_, rate, c, e) = self.xp, self._line, self._tracks, self._term
        w = each(line.sorted, self._rows.weights(xp) if source is None else source)
        is_negative = line.is_negative
        of_classes = [
            each(lambda part: xp.where(is_negative, 0.0, part), w),
            each(lambda part: xp.where(is_negative, part, 0.0), w),
        ]
        classes = [k for k, is_target in enumerate((to.negatives, to.positives)) if is_target]
        weights = xp.stacked([tracks.of(of_classes[k], of_classes[k]) for k in classes])
        # Negatives have pairs with d > 0, of side 1, with the positives below them, and pairs of
        # side 0 with those above.
        sides = [side for k in classes for side in (1 - k, k)]

        if isinstance(c, np.ndarray):  # orders up to these may have fewer powers
            is_used = sum(abs(a[list(orders)]).sum((0, 1)) for a in (c, e) if a is not None) > 0.0
            used = slice(int(np.flatnonzero(is_used).max(initial=0)) + 1)
            c, e = c[..., used], None if e is None else e[..., used]

        def coefficients(c: Any) -> Number:
            """Return those of each class, track, order and power."""
            c = xp.constants(c)
            flat = xp.stacked([each(itemgetter((k, side)), c) for side in sides for k in orders])
            return each(lambda part: part.reshape(len(classes), 2, len(orders), -1), flat)

        sums = (xp.exponential_sums or exponential_sums)(
            xp,
            self._position,
            tracks.runs.start,
            xp.constants(rate),
            weights,
            coefficients(c),
            None if e is None else coefficients(e),
        )
        of_targets = [reduce(xp.plus, tracks.on_line(a)) for a in xp.unstacked(sums)]
        on_line = of_targets[0] if len(classes) == 1 else xp.choose(is_negative, *of_targets)
        return [xp.sum_of_terms(line.in_batch(a)) for a in xp.unstacked(on_line)]
