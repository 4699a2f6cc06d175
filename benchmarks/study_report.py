"""Tables and figures of the study of images, from the rows in results/.

For each part and batch size, `write` makes the files of ``everypair report`` (table 2, figure 3,
paired differences) in results/PART, and one page with all test AUCs beside those of the paper.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.study import PARTS, SEEDS, counted, read_rows
from everypair.experiments import report
from everypair.experiments.display_names import display_name
from everypair.experiments.plan import Record, Settings
from everypair.experiments.report.selection import Summary, difference, gathered, t_interval
from everypair.experiments.report.study import Study

PAPER = Path(__file__).parent / "rows" / "paper_figure3.csv"
"""Test AUC, mean and sd of five seeds, read off the figures that the authors published."""

HEAD = "imratio | loss | test AUC (95 % interval) | seeds | median rate | minus logistic | paper"


def write(folder: Path) -> list[Path]:
    """Draw everything from the rows of a folder; return the files."""
    files, pages = [], ["# The study of images\n\nMade by `make results`; do not edit.\n"]
    for name, part in PARTS.items():
        path = folder / f"{name}.jsonl"
        if not path.is_file():
            continue
        settings, records = read_rows(path)
        kept = counted(part, records)
        for batch, own in gathered(kept, lambda record: record.trial.batch).items():
            called = name if len(part.batches) == 1 else f"{name}-{batch}"
            study = report.study_of(own, settings)
            target = folder / called
            written = report.write(study, settings, target, formats=("csv", "svg"))
            files += written.files
            pages.append(page(called, batch, study, settings, records))
    index = folder / "README.md"
    index.write_text("\n".join(pages))
    return [*files, index]


def page(name: str, batch: int, study: Study, settings: Settings, records: Sequence[Record]) -> str:
    """Return the section of one part, in Markdown."""
    data = study.records[0].trial.cell.data
    done = sum(record.trial.batch == batch for record in records)
    lines = [
        f"## {name}",
        "",
        f"{display_name(data)}, batch {batch}, {settings.epochs} epochs, {settings.scores} scores "
        f"(logistic: raw, AUCM: sigmoid), {settings.sampler} batches, protocol "
        f"{settings.protocol}, precision {settings.precision}. {done} trials, "
        f"{len(study.records)} of them with the two rates of each loss that count.",
        "",
        f"| {HEAD} |",
        "|---" * (HEAD.count("|") + 1) + "|",
        *_table(data, study),
        "",
        f"![test AUC by seed]({name}/figure3.svg)",
        "",
    ]
    return "\n".join(lines)


def _table(data: str, study: Study) -> Iterator[str]:
    paper = paper_values()
    for rivals in study.by_comparison.values():
        reference = next((one for one in rivals if one.contender.loss == "logistic"), None)
        for one in rivals:
            imratio, loss = one.comparison.imratio, one.contender.loss
            gap = ""
            if reference is not None and reference is not one:
                found = difference(one, reference)
                gap = f"{found.mean:+.3f} {_interval(found.interval)}"
            cells = [
                f"{imratio:g}",
                display_name(loss),
                f"{one.mean:.3f} {_interval(t_interval([r.test_auc for r in one.chosen]))}",
                _seeds(one),
                f"{one.rate:g}",
                gap,
                paper.get((data, imratio, loss), ""),
            ]
            yield f"| {' | '.join(cells)} |"


def _interval(found: tuple[float, float] | None) -> str:
    return "" if found is None else f"({found[0]:.3f} to {found[1]:.3f})"


def _seeds(one: Summary) -> str:
    note = "" if one.n == len(SEEDS) else " (not complete)"
    return f"{one.n}{note}"


def paper_values() -> dict[tuple[str, float, str], str]:
    """Return the paper's test AUCs by data set, imratio and loss, as text."""
    with PAPER.open() as file:
        return {
            (row["data"], float(row["imratio"]), row["loss"]): f"{row['mean']} ± {row['sd']}"
            for row in csv.DictReader(file)
            if not math.isnan(float(row["mean"]))
        }
