"""The input of every output of the report: records, settings and the number of planned trials."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from everypair.experiments.display_names import display_name
from everypair.experiments.plan import Record, Settings
from everypair.experiments.report import selection, wording
from everypair.experiments.report.selection import (
    Comparison,
    Contender,
    Difference,
    Standing,
    Summary,
)


@dataclass(frozen=True)
class Study:
    """Records in the order of the grid, out of `planned` trials."""

    records: tuple[Record, ...]
    settings: Settings
    planned: int

    @cached_property
    def summed(self) -> list[Summary]:
        """Return one summary for each comparison and contender."""
        return selection.summaries(selection.results(self.records))

    @cached_property
    def gaps(self) -> list[Difference]:
        """Return the paired differences of all contenders, comparison by comparison."""
        return selection.differences(self.summed)

    @cached_property
    def standings(self) -> dict[Comparison, Standing]:
        """Return the leader of each comparison."""
        return {place.comparison: place for place in selection.standings(self.summed)}

    @cached_property
    def by_comparison(self) -> dict[Comparison, list[Summary]]:
        """Return the summaries of each comparison, in the order of the report."""
        return selection.gathered(self.summed, lambda summary: summary.comparison)

    @cached_property
    def contenders(self) -> list[Contender]:
        """Return all contenders, in the order in which they appear and are coloured."""
        return list(selection.gathered(self.summed, lambda summary: summary.contender))

    def called(self, who: Contender) -> str:
        """Return the name of the loss, with its optimiser only if the loss has several."""
        alone = sum(other.loss == who.loss for other in self.contenders) == 1
        return display_name(who.loss) if alone else wording.contender(who)

    @property
    def unfinished(self) -> int:
        """Return the number of trials that have not ended."""
        return max(0, self.planned - len(self.records))
