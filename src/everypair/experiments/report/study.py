"""The input of every output of the report: records, settings and the number of planned trials."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from everypair.experiments.display_names import display_name
from everypair.experiments.plan import Record, Settings
from everypair.experiments.report import selection, table_facts, wording
from everypair.experiments.report.selection import Contender
from everypair.experiments.report.table_facts import TableFacts


@dataclass
class Study:
    """Records in the order of the grid, out of `planned` trials, and the results from them."""

    records: tuple[Record, ...]
    settings: Settings
    planned: int
    folder: Path | None = None  # of the experiment; a table has more to show there

    def __post_init__(self) -> None:
        self.summed = selection.summaries(selection.results(self.records))
        self.gaps = selection.differences(self.summed)
        self.standings = {place.comparison: place for place in selection.standings(self.summed)}
        self.by_comparison = selection.gathered(self.summed, lambda summary: summary.comparison)
        # In the order in which they appear, which also gives them their colours.
        self.contenders = list(dict.fromkeys(summary.contender for summary in self.summed))
        self.unfinished = max(0, self.planned - len(self.records))

    @cached_property
    def facts(self) -> TableFacts:
        """Return what the folder holds about a table; empty if there is nothing."""
        if self.folder is None or self.settings.table is None:
            return TableFacts()
        return table_facts.read(self.folder, self.settings.fingerprint)

    def called(self, who: Contender) -> str:
        """Return the name of the loss, with its optimiser only if the loss has several."""
        alone = sum(other.loss == who.loss for other in self.contenders) == 1
        return display_name(who.loss) if alone else wording.contender(who)
