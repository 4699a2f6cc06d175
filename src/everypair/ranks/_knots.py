"""Running sums along sorted rows: of powers of distances, and of their exponentials."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from everypair.arrays.double_double import Number, each, twice
from everypair.arrays.exponential_sums import ExponentialSums, Line, State

if TYPE_CHECKING:
    from everypair.arrays.double_double import Arrays
    from everypair.arrays.rows import Runs

    Array = Any


class Knots:
    """Sorted rows along which sums run, restarting at every group.

    Parameters
    ----------
    xp : Arrays
    position : Number of shape (n,)
        Not decreasing inside a group.
    runs : Runs
        The groups.
    """

    def __init__(self, xp: Arrays, position: Number, runs: Runs) -> None:
        self._xp, self.position, self._runs = xp, position, runs

    @cached_property
    def _downwards(self) -> Knots:
        """The same rows in reverse order, at the negative positions."""
        flip = self._xp.flip
        position = each(lambda part: -flip(part), self.position)
        return Knots(self._xp, position, self._runs.reversed)

    @cached_property
    def _gap(self) -> Number:
        return self._runs.gaps(self.position)

    def moments(self, added: list[Array], *, upwards: bool) -> list[Array]:
        """Return running sums of distances to the powers 0, 1 and 2, as many as there are `added`.

        Entry k is ``sum of w |d|^k`` over what rows up to each row have added, itself included; or
        over what rows from it on have added, if not `upwards`. A row adds ``added[k]``, (n,), the
        sum of w |d|^k for distances from itself.
        """
        if not upwards:
            flip = self._xp.flip
            sums = self._downwards.moments([flip(a) for a in added], upwards=True)
            return [flip(a) for a in sums]
        xp, runs = self._xp, self._runs
        found: list[Number] = []
        for k, own in enumerate(added):
            step = Number(own)
            if k > 0:
                # Moving on by a gap g adds g M_0 to M_1, and g (2 M_1 + g M_0) to M_2.
                moved = xp.times(self._gap, runs.before(found[0]))
                if k == 2:
                    moved = xp.plus(moved, twice(runs.before(found[1])))
                    moved = xp.times(self._gap, moved)
                step = xp.plus(moved, step)
            found.append(xp.prefix(step, runs))
        return [a.high if a.low is None else a.high + a.low for a in found]

    def exponentials(
        self, a: Array, b: Array, rate: float, *, upwards: bool
    ) -> tuple[Array, Array]:
        """Return running sums of ``w exp(-k u)`` and of ``w u exp(-k u)``, with u = rate |d|.

        A row adds `a` and `b`, each of shape (powers, n); the powers are k = 1, 2, ... The second
        sum is None if `b` is None.
        """
        xp = self._xp.for_smooth_terms()
        if not upwards:
            b = None if b is None else xp.flip(b)
            sums = self._downwards.exponentials(xp.flip(a), b, rate, upwards=True)
            return xp.flip(sums[0]), None if b is None else xp.flip(sums[1])
        ones = xp.constants(np.ones((1, 1, a.shape[0])))
        rates = xp.constants(np.array([rate]))
        scan = ExponentialSums(xp, rates, ones, None if b is None else ones)
        line = Line(self.position, self._runs.rows, self._runs.start)
        added = State(Number(a[None]), None if b is None else Number(b[None]))
        sums = scan.carried(line, added)
        return sums.a.high[0], None if sums.b is None else sums.b.high[0]
