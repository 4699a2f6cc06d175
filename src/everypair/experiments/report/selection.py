"""From records to results: choose a trial in each cell, and compare losses by the chosen trials.

A cell's trials compete by validation AUC alone; the test AUC of the winner is the cell's result.
Contenders (a loss with its optimiser) are compared seed by seed, because a seed fixes the split and
the initial weights for all of them. A comparison is made of all contenders on one data set with
one share of positives.

>>> from everypair.experiments.plan import Cell, Trial
>>> cell = Cell("digits", 0.1, "logistic", "sgd", seed=0)
>>> records = [
...     Record(Trial(cell, 50, 0.1), "finished", {}, 3, validation_auc=0.90, test_auc=0.95),
...     Record(Trial(cell, 50, 1.0), "finished", {}, 7, validation_auc=0.92, test_auc=0.91),
... ]
>>> [result] = results(records)
>>> result.winner.trial.rate, result.winner.test_auc
(1.0, 0.91)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import combinations
from operator import attrgetter
from statistics import fmean, median_low, stdev
from typing import Literal, NamedTuple, TypeVar

from everypair.experiments.intervals import resampled_interval
from everypair.experiments.plan import FULL_BATCH, Cell, Record

TEST_SHARE = 0.2 / 0.64
"""Test rows for each training row of a split, see `resampled_interval`.

For data with an official test part, which all seeds share, the correction is a rule of thumb.
"""

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class Comparison(NamedTuple):
    """The data set and share of positives on which contenders are compared."""

    data: str
    imratio: float


class Contender(NamedTuple):
    """A loss with its optimiser."""

    loss: str
    optimiser: str


@dataclass(frozen=True)
class CellResult:
    """A cell, its records, and the one with the greatest validation AUC (None if there is none)."""

    cell: Cell
    records: tuple[Record, ...]
    winner: Record | None


@dataclass
class Summary:
    """One contender in one comparison, over its seeds."""

    comparison: Comparison
    contender: Contender
    cells: tuple[CellResult, ...]

    def __post_init__(self) -> None:
        self.records = [record for cell in self.cells for record in cell.records]
        self.chosen = [cell.winner for cell in self.cells if cell.winner]  # one for each seed
        self.n = len(self.chosen)
        aucs = [record.test_auc for record in self.chosen]
        self.mean = fmean(aucs) if self.n else math.nan
        self.sd = stdev(aucs) if self.n > 1 else math.nan  # divided by n - 1
        # Of two values in the middle, the smaller: a mean of both may never have been tried.
        self.rate = median_low([record.trial.rate for record in self.chosen] or [math.nan])
        # `FULL_BATCH` counts as the largest batch size.
        sizes = [float(record.trial.batch or math.inf) for record in self.chosen]
        batch = median_low(sizes or [math.nan])
        self.batch = FULL_BATCH if batch == math.inf else batch
        # Seeds whose choice is the smallest or largest of three or more rates, tried on any seed.
        rates = {record.trial.rate for record in self.records}
        ends = {min(rates), max(rates)} if len(rates) > 2 else set()
        self.n_at_edge = sum(record.trial.rate in ends for record in self.chosen)

    def count(self, state: str) -> int:
        """Return the number of trials that ended in a state."""
        return sum(record.state == state for record in self.records)


@dataclass
class Difference:
    """Test AUC of one contender minus another's, on the seeds that both have."""

    comparison: Comparison
    first: Contender
    second: Contender
    seeds: tuple[int, ...]
    values: tuple[float, ...]  # one for each seed

    def __post_init__(self) -> None:
        self.n = len(self.values)
        self.mean = fmean(self.values) if self.n else math.nan
        self.interval = resampled_interval(self.values, TEST_SHARE)

    @property
    def verdict(self) -> Literal["first", "second", "tie", "unknown"]:
        """Return who is ahead: a tie if the interval holds 0, unknown if there is no interval."""
        if self.interval is None:
            return "unknown"
        low, high = self.interval
        return "first" if low > 0 else "second" if high < 0 else "tie"


@dataclass(frozen=True)
class Standing:
    """The contender with the greatest mean test AUC, and its lead over each of the others."""

    comparison: Comparison
    leader: Contender
    others: dict[Contender, Difference]  # the leader minus the other

    def where(self, *verdicts: str) -> tuple[Contender, ...]:
        """Return the others by verdict: those behind have the verdict ``first``."""
        return tuple(who for who, gap in self.others.items() if gap.verdict in verdicts)


def gathered(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by key, keys and items in order of appearance."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def results(records: Iterable[Record]) -> list[CellResult]:
    """Choose in every cell the record with the greatest validation AUC.

    A diverged trial competes with the epochs before it diverged; a failed one does not compete.
    Records are in the order of the grid: of equal validation AUCs, the first wins.
    """
    chosen = []
    for cell, tried in gathered(records, lambda record: record.trial.cell).items():
        able = [r for r in tried if r.state != "failed" and math.isfinite(r.validation_auc)]
        winner = max(able, key=lambda record: record.validation_auc, default=None)
        chosen.append(CellResult(cell, tuple(tried), winner))
    return chosen


def summaries(cells: Iterable[CellResult]) -> list[Summary]:
    """Return one summary for each comparison and contender, by data set and descending imratio."""

    def group_of(result: CellResult) -> tuple[Comparison, Contender]:
        cell = result.cell
        return Comparison(cell.data, cell.imratio), Contender(cell.loss, cell.optimiser)

    groups = gathered(cells, group_of)
    data = list(dict.fromkeys(comparison.data for comparison, _ in groups))
    contenders = list(dict.fromkeys(contender for _, contender in groups))
    ordered = sorted(
        groups, key=lambda k: (data.index(k[0].data), -k[0].imratio, contenders.index(k[1]))
    )
    by_seed = attrgetter("cell.seed")
    return [Summary(*key, tuple(sorted(groups[key], key=by_seed))) for key in ordered]


def difference(first: Summary, second: Summary) -> Difference:
    """Return the differences of two contenders, paired by seed."""
    ours, theirs = (
        {record.trial.cell.seed: record.test_auc for record in summary.chosen}
        for summary in (first, second)
    )
    seeds = tuple(sorted(ours.keys() & theirs.keys()))
    gaps = tuple(ours[seed] - theirs[seed] for seed in seeds)
    return Difference(first.comparison, first.contender, second.contender, seeds, gaps)


def differences(summed: Iterable[Summary]) -> list[Difference]:
    """Return the paired differences of all contenders in every comparison."""
    comparisons = gathered(summed, attrgetter("comparison")).values()
    return [difference(a, b) for rivals in comparisons for a, b in combinations(rivals, 2)]


def standings(summed: Iterable[Summary]) -> list[Standing]:
    """Compare all contenders with the one that has the greatest mean, in every comparison."""
    found = []
    for comparison, rivals in gathered(summed, attrgetter("comparison")).items():
        leader = max((s for s in rivals if s.n), key=lambda summary: summary.mean, default=None)
        if leader:
            others = {s.contender: difference(leader, s) for s in rivals if s is not leader}
            found.append(Standing(comparison, leader.contender, others))
    return found
