"""Claim trials that are run at once: which ones, how many, and whether the time is enough.

A work such as `SideBySide` trains several trials in one CUDA graph. Groups have nearly the same
size, since a graph with few trials leaves most of a GPU idle: twelve trials at most eight at once
are run as six and six, not as eight and four.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque

from everypair.experiments.plan import Record, Trial
from everypair.experiments.search._workers import Work
from everypair.experiments.search.store import Claim, Store

_LEAST_AT_ONCE = 4
"""Fewer trials leave a GPU idle, and each then takes longer than the trials before it."""

_REMEMBERED = 8  # records from which the time of a trial is estimated


class Groups:
    """Claims groups of trials.

    Parameters
    ----------
    store, work
        Where the trials wait, and what runs them.
    deadline : float
        Value of ``time.monotonic()`` at which trials have to be finished. A trial is not claimed if
        it would end later, judged by the seconds of the latest trials of its kind in this run. The
        records of earlier runs are not used, since those may have had another machine.
    """

    def __init__(self, store: Store, work: Work, deadline: float = math.inf) -> None:
        self.mixed = True  # whether trials of several losses are run at once, if the work does that
        self._store, self._work, self._deadline = store, work, deadline
        self._seconds: dict[object, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))

    def learn(self, record: Record) -> None:
        """Use the seconds of a finished trial for the estimates."""
        if record.state == "finished":
            self._seconds[_kind(record.trial)].append(record.seconds)

    def claim(self) -> list[Claim]:
        """Claim the first group for which there is time; an empty list if there is none."""
        for key, trials in self._waiting().items():
            size = self._size(trials)
            claims: list[Claim] = []

            def is_wanted(trial: Trial, key: object = key, claims: list[Claim] = claims) -> bool:
                # TPE has chosen the batch size of a claimed trial, and may choose another one next.
                return self._key(trial) == (self._key(claims[0].trial) if claims else key)

            while len(claims) < size and (claim := self._store.claim(is_wanted)):
                claims.append(claim)
            if claims:
                return claims
        return []

    def is_out_of_time(self) -> bool:
        """Return whether trials wait, but none of them would be finished in time."""
        if math.isinf(self._deadline):
            return False
        waiting = self._waiting()
        return bool(waiting) and not any(map(self._size, waiting.values()))

    def _waiting(self) -> dict[object, list[Trial]]:
        groups: dict[object, list[Trial]] = {}
        for trial in self._store.waiting():
            groups.setdefault(self._key(trial), []).append(trial)
        return groups

    def _key(self, trial: Trial) -> object:
        key = self._work.group_key(trial)
        return key if self.mixed else (key, trial.cell.loss, trial.cell.optimiser)

    def _size(self, trials: list[Trial]) -> int:
        """Return how many of the trials to run at once; 0 if there is no time for them."""
        even = math.ceil(len(trials) / math.ceil(len(trials) / self._work.width))
        left = self._deadline - time.monotonic()
        seconds = self._seconds[_kind(trials[0])]
        if not seconds or math.isinf(left):
            return even if left > 0 else 0
        in_time = left * len(seconds) / max(sum(seconds), 1e-9)
        return 0 if in_time < min(_LEAST_AT_ONCE, even) else min(even, int(in_time))


def _kind(trial: Trial) -> object:
    """Return what the time of a trial depends on most."""
    return trial.cell.data, trial.cell.optimiser, trial.batch
