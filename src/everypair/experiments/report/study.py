"""What every output of the report is made from: records, settings, and what is still to come."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from everypair.experiments.display_names import display_name
from everypair.experiments.plan import Record, Settings
from everypair.experiments.report import selection, wording
from everypair.experiments.report.selection import Contender, Difference, Standing, Summary, Task

__all__ = ["Study"]


@dataclass(frozen=True)
class Study:
    """Records in the order of the grid, of which `planned` trials are expected in the end."""

    records: tuple[Record, ...]
    settings: Settings
    planned: int

    @cached_property
    def summed(self) -> list[Summary]:
        """Return one summary a task and contender."""
        return selection.summaries(selection.results(self.records))

    @cached_property
    def gaps(self) -> list[Difference]:
        """Return the paired differences of all contenders, task by task."""
        return selection.differences(self.summed)

    @cached_property
    def standings(self) -> dict[Task, Standing]:
        """Return who leads each task."""
        return {place.task: place for place in selection.standings(self.summed)}

    @cached_property
    def by_task(self) -> dict[Task, list[Summary]]:
        """Return the summaries of each task, in the order of the report."""
        return selection.gathered(self.summed, lambda summary: summary.task)

    @cached_property
    def contenders(self) -> list[Contender]:
        """Return everybody, in the order in which they appear and are coloured."""
        return list(selection.gathered(self.summed, lambda summary: summary.contender))

    def called(self, who: Contender) -> str:
        """Return the loss, with its optimiser only where it has several."""
        alone = sum(other.loss == who.loss for other in self.contenders) == 1
        return display_name(who.loss) if alone else wording.contender(who)

    @property
    def unfinished(self) -> int:
        """Return the number of trials that are still to come."""
        return max(0, self.planned - len(self.records))
