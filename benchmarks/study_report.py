"""Tables and figures of the study of images, from the rows in results/.

For each part and batch size, `write` makes the files of ``everypair report`` (table 2, figure 3,
paired differences) in results/PART, and one page with all test AUCs beside those of the paper. Its
tables also go to docs/evidence.md. Losses whose trials are not all there are not shown, only named.
"""

from __future__ import annotations

import csv
import math
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.study import PARTS, RESULTS, counted, read_rows
from everypair.experiments import report
from everypair.experiments.display_names import display_name
from everypair.experiments.intervals import resampled_interval
from everypair.experiments.plan import Record, Settings
from everypair.experiments.report.selection import TEST_SHARE, difference, gathered
from everypair.experiments.report.study import Study

PAPER = RESULTS / "paper_figure3.csv"
"""Test AUC, mean and sd of five seeds, read off the figures that the authors published."""

HEAD = "imratio | loss | test AUC (95 % interval) | seeds | median rate | minus logistic | paper"
ALT = "Test AUC by seed, for each loss and share of positives"
SHARES_OF_EPOCHS = (0.25, 0.5, 0.75, 1.0)


def write(folder: Path, docs: Path | None = None) -> list[Path]:
    """Draw everything from the rows of a folder; return the files.

    If `docs` is given, its page evidence.md gets the same tables, and its assets the figures.
    """
    files, pages = [], ["# The study of images\n\nMade by `make results`; do not edit.\n"]
    missing, shown = [], []
    for name, part in PARTS.items():
        path = folder / f"{name}.jsonl"
        if not path.is_file():
            missing.append(f"- {name}: not run")
            continue
        settings, records = read_rows(path)
        kept = counted(part, records)
        for batch, own in gathered(kept, lambda record: record.trial.batch).items():
            called = name if len(part.batches) == 1 else f"{name}-{batch}"
            study = report.study_of(own, settings)
            target = folder / called
            written = report.write(study, settings, target, formats=("csv", "svg"))
            files += written.files
            body = section(batch, study, settings, records)
            pages.append(f"## {called}\n\n{body}\n![{ALT}]({called}/figure3.svg)\n")
            figure = f"assets/study-{called}.svg"
            shown.append(f"### {called}\n\n{body}\n![{ALT}]({figure})\n")
            if docs is not None:
                shutil.copyfile(target / "figure3.svg", docs / figure)
                files.append(docs / figure)
        n_losses = len(part.losses) * len(part.blocks())
        n_complete = len({(r.trial.cell.imratio, r.trial.batch, r.trial.cell.loss) for r in kept})
        if n_complete < n_losses:
            done = f"{len(records)} trials, {n_complete} of {n_losses} losses complete"
            missing.append(f"- {name}: {done} (a loss counts once for each imratio and batch size)")
    if missing:
        pages.append("\n".join(["## Not complete, and not shown above", "", *missing, ""]))
    index = folder / "README.md"
    index.write_text("\n".join(pages))
    if docs is not None:
        _fill(docs / "evidence.md", "\n".join(shown))
    return [*files, index]


def _fill(page: Path, text: str) -> None:
    pattern = re.compile(r"(<!-- study -->\n).*?(<!-- /study -->)", re.DOTALL)
    page.write_text(pattern.sub(lambda m: f"{m[1]}\n{text}\n{m[2]}", page.read_text()))


def section(batch: int, study: Study, settings: Settings, records: Sequence[Record]) -> str:
    """Return the tables of one part, in Markdown."""
    data = study.records[0].trial.cell.data
    done = sum(record.trial.batch == batch for record in records)
    lines = [
        f"{display_name(data)}, batch {batch}, {settings.epochs} epochs, {settings.scores} scores "
        f"(logistic: raw, AUCM: sigmoid), {settings.sampler} batches, protocol "
        f"{settings.protocol}, precision {settings.precision}. {done} trials, "
        f"{len(study.records)} of them with the two rates of each loss that count.",
        "",
        f"| {HEAD} |",
        "|---" * (HEAD.count("|") + 1) + "|",
        *_table(data, study),
        "",
        "Intervals over the seeds are corrected for splits that share rows; differences are "
        "paired by seed. The paper's values are means ± standard deviations, read off its "
        "figure 3.",
        "",
        "Mean over seeds of the greatest validation AUC, had training ended earlier:",
        "",
        *_epochs(study, settings.epochs),
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
                f"{one.mean:.3f} {_interval(_of_mean([r.test_auc for r in one.chosen]))}",
                f"{one.n}",
                f"{one.rate:g}",
                gap,
                paper.get((data, imratio, loss), ""),
            ]
            yield f"| {' | '.join(cells)} |"


def _epochs(study: Study, epochs: int) -> Iterator[str]:
    ends = [round(share * epochs) for share in SHARES_OF_EPOCHS]
    heads = [*(f"{end} epochs" for end in ends), f"minus logistic after {ends[0]} epochs"]
    yield f"| imratio | loss | {' | '.join(heads)} |"
    yield "|---" * (2 + len(heads)) + "|"
    for rivals in study.by_comparison.values():
        early = {
            one.contender.loss: {c.cell.seed: _best_until(ends[0], c.records) for c in one.cells}
            for one in rivals
        }
        for one in rivals:
            imratio, loss = one.comparison.imratio, one.contender.loss
            means = [fmean(_best_until(end, cell.records) for cell in one.cells) for end in ends]
            gap = ""
            if loss != "logistic" and (reference := early.get("logistic")):
                gaps = [auc - reference[seed] for seed, auc in early[loss].items()]
                gap = f"{fmean(gaps):+.3f} {_interval(_of_mean(gaps))}"
            values = " | ".join([*(f"{mean:.3f}" for mean in means), gap])
            yield f"| {imratio:g} | {display_name(loss)} | {values} |"


def _best_until(end: int, records: Sequence[Record]) -> float:
    aucs = [auc for r in records for auc in r.history.get("validation_auc", ())[: end + 1]]
    return max(aucs, default=math.nan)


def _of_mean(values: Sequence[float]) -> tuple[float, float] | None:
    return resampled_interval(values, TEST_SHARE)


def _interval(found: tuple[float, float] | None) -> str:
    return "" if found is None else f"({found[0]:.3f} to {found[1]:.3f})"


def paper_values() -> dict[tuple[str, float, str], str]:
    """Return the paper's test AUCs by data set, imratio and loss, as text."""
    with PAPER.open() as file:
        return {
            (row["data"], float(row["imratio"]), row["loss"]): f"{row['mean']} ± {row['sd']}"
            for row in csv.DictReader(file)
            if not math.isnan(float(row["mean"]))
        }
