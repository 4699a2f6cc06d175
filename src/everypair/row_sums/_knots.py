"""Running sums along sorted rows: of powers of distances, and of their exponentials."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from everypair.arrays.double_double import Number, each, twice
from everypair.arrays.exponential_sums import ExponentialSums, Line, State

if TYPE_CHECKING:
    from everypair.arrays.double_double import Arrays
    from everypair.arrays.rows import Runs

    Array = Any


_LARGEST_EXPONENT = 600.0  # its exponential is finite, and so are sums of many
_LONGEST_WINDOW = 1 << 14


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
        return [sums.high for sums in found]

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
        windows = self._windows(a.shape[0] * rate)
        if windows is not None:
            return self._by_windows(a, b, rate, windows)
        ones = xp.constants(np.ones((1, 1, a.shape[0])))
        rates = xp.constants(np.array([rate]))
        scan = ExponentialSums(xp, rates, ones, None if b is None else ones)
        line = Line(self.position, self._runs.rows, self._runs.start)
        added = State(Number(a[None]), None if b is None else Number(b[None]))
        sums = scan.carried(line, added)
        return sums.a.high[0], None if sums.b is None else sums.b.high[0]

    def _windows(self, largest_rate: float) -> list[slice] | None:
        """Cut the rows so that ``exp(largest_rate |d|)`` is finite inside each window.

        Returns None if there are too many windows for a loop in Python, or groups.
        """
        if not self._xp.reads_values or self._runs.start is not None:
            return None
        position = self.position.high
        n = position.shape[0]
        reach = _LARGEST_EXPONENT / largest_rate
        starts, most = [0], 32 + n // _LONGEST_WINDOW
        while starts[-1] < n:
            if len(starts) > most:
                return None
            end = np.searchsorted(position, position[starts[-1]] + reach, "right")
            starts.append(min(int(end), starts[-1] + _LONGEST_WINDOW))
        return [slice(*bounds) for bounds in pairwise(starts)]

    def _by_windows(
        self, a: Array, b: Array, rate: float, windows: list[slice]
    ) -> tuple[Array, Array]:
        """Return what `exponentials` does, by cumulative sums relative to the start of each window.

        With u the distance from that start, ``sum of w exp(-k (u_i - u_j))`` is ``exp(-k u_i)``
        times the cumulative sum of ``w exp(k u_j)``, in which nothing cancels for weights of one
        sign. The sum of ``w (u_i - u_j) exp(...)`` loses the digits of u, which is below 600.
        """
        powers = np.arange(1.0, a.shape[0] + 1.0)[:, None]
        out_a, out_b = np.empty(a.shape), None if b is None else np.empty(a.shape)
        position, low = self.position
        end_a = end_b = np.zeros((a.shape[0], 1))
        end = 0
        for rows in windows:
            # From the end of the window before to its start, then from there to each row.
            distances = []
            for x, start in ((slice(rows.start, rows.start + 1), end), (rows, rows.start)):
                u = position[x] - position[start]
                distances.append(rate * (u if low is None else u + (low[x] - low[start])))
            v, u = np.minimum(distances[0], 2.0 * self._xp.largest_exponent), distances[1]
            decay = np.exp(-powers * v)
            if out_b is not None:
                end_b = (end_b + v * end_a) * decay
            end_a = end_a * decay
            growth = np.exp(powers * u)
            sums = np.cumsum(a[:, rows] * growth, axis=1) + end_a
            out_a[:, rows] = sums / growth
            if b is not None and out_b is not None:
                own = np.cumsum((b[:, rows] - a[:, rows] * u) * growth, axis=1) + end_b
                out_b[:, rows] = (own + u * sums) / growth
                end_b = out_b[:, rows.stop - 1 : rows.stop]
            end_a, end = out_a[:, rows.stop - 1 : rows.stop], rows.stop - 1
        return out_a, out_b
