"""Options of ``everypair experiment`` that say how the rows and columns of a table are used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from everypair.experiments.commands._parameters import option, words
from everypair.experiments.plan import TableFile

if TYPE_CHECKING:
    from everypair.experiments.data.sources import Dataset
    from everypair.experiments.plan import Grid, Settings

NAMES = ("data", "label", "group", "positive", "drop", "only", "time", "test")
"""The options that go with a table only."""


def _option(text: str) -> Any:
    return option(text, rich_help_panel="Data", default="none")


Drop: TypeAlias = Annotated[
    list[str] | None, _option("Columns not to learn from, such as id,name; repeatable.")
]
Only: TypeAlias = Annotated[list[str] | None, _option("Learn from these columns only; repeatable.")]
Time: TypeAlias = Annotated[
    str | None, _option("Column of dates or numbers: train on the oldest rows, test on the newest.")
]
Test: TypeAlias = Annotated[Path | None, _option("File with the test rows, instead of a split.")]


def table_file(options: Mapping[str, Any]) -> TableFile:
    """Describe the table that the options name; ``--data`` and ``--label`` are there."""
    return TableFile(
        path=str(options["data"].absolute()),
        label=options["label"],
        group=options["group"],
        positive=options["positive"],
        drop=tuple(name for text in options["drop"] or () for name in words(text)),
        only=tuple(name for text in options["only"] or () for name in words(text)),
        time=options["time"],
        test=options["test"] and str(options["test"].absolute()),
    )


def describe_table(
    table: TableFile, grid: Grid, settings: Settings, dataset: Dataset, folder: Path
) -> list[str]:
    """Keep what is known about a table in the folder of its experiment; return it as lines.

    A record about other data stays: the store of that folder will refuse to go on.
    """
    from everypair.experiments.data import profile, splits

    imratio, seed = grid.imratios[0], grid.seeds[0]
    rows = splits.split_rows(dataset, imratio=imratio, seed=seed, protocol=settings.protocol)
    encoder = splits.fit_encoder(dataset, rows.subtrain)
    families = settings.model == "families"
    record = profile.describe(dataset, table, rows, encoder, cross_validated=families)
    before = profile.read(folder)
    if before is None or before.get("fingerprint") == dataset.fingerprint:
        profile.write(folder, record)
    return profile.summary(record)
