"""Tables and figures of the study of images, from the rows in results/.

For each part and batch size, `write` makes the files of ``everypair report`` (table 2, figure 3,
paired differences) in results/PART, and one page with all test AUCs beside those of the paper. Its
tables also go to studies/pages, docs/evidence.md and docs/paper.md. Losses whose trials are not all
there are not shown, only named.
"""

from __future__ import annotations

import csv
import math
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.pages import fill
from everypair.experiments import report
from everypair.experiments.display_names import display_name
from everypair.experiments.intervals import resampled_interval
from everypair.experiments.plan import Record, Settings
from everypair.experiments.report.selection import TEST_SHARE, difference, gathered
from everypair.experiments.report.study import Study
from studies import figure2, images_summaries, open_questions_report, paper_tables, wins
from studies.images import PARTS, RESULTS, Part, counted, read_rows

PAPER = RESULTS / "paper_figure3.csv"
"""Test AUC, mean and sd of five seeds, read off plots of the authors; see `HEADER`."""

PAPER_TABLE2 = RESULTS / "paper_table2.csv"
"""The paper's table 2: medians of the selected batch sizes and learning rates."""

HEADER = """# The study of images

Made by `make results` from the rows in this folder; do not edit. The command of a part runs its
trials, and `python -m studies.images rows` writes them into this folder.

Intervals over the seeds are corrected for splits that share rows; differences are paired by seed. A
median rate is marked if it is the smallest or the largest that was tried. The minutes are the sum
of the trials' own times, in which trials that ran together share the time of the GPU.

The paper's values, `paper_figure3.csv`, are means ± standard deviations over five seeds. They were
read off plots that the authors published for figure 3 of arXiv:2302.11062, before this study. Which
file, and with which error, was not recorded, and they cannot be derived from the source of the
paper, whose plots are missing. They agree with what its text says of the figure.
`paper_table2.csv` is table 2 of that source.
"""
HEAD = "imratio | loss | test AUC (95 % interval) | seeds | median rate | minus logistic | paper"
ALT = "Test AUC by seed, for each loss and share of positives"
IN_DOCS = ("cifar10", "cifar10-raw", "catdog", "stl10")
"""Parts whose tables and figures are in pages/images.md too. The others have summaries there."""

ASSETS = "../../docs/assets"  # from the folder studies/pages

SHARES_OF_EPOCHS = (0.25, 0.5, 0.75, 1.0)


def write(folder: Path, docs: Path | None = None) -> list[Path]:
    """Draw everything from the rows of a folder; return the files.

    If `docs` is given, its page evidence.md and the pages beside `folder` get the tables too, and
    its assets hold the figures of test AUCs instead of `folder`.
    """
    files: list[Path] = []
    pages = [HEADER]
    missing, shown = [], []
    for name, part in PARTS.items():
        path = folder / f"{name}.jsonl"
        if not path.is_file():
            missing.append(f"- {name}: not run")
            continue
        settings, records = read_rows(path)
        kept = counted(part, records)
        n_losses = len(part.losses) * len(part.blocks())
        n_complete = len({(r.trial.cell.imratio, r.trial.batch, r.trial.cell.loss) for r in kept})
        if n_complete < n_losses:
            done = f"{len(records)} trials, {n_complete} of {n_losses} losses complete"
            missing.append(f"- {name}: {done} (a loss counts once for each imratio and batch size)")
        if name in images_summaries.CAUSES:
            continue
        tried = _rates(part)
        for batch, own in gathered(kept, lambda record: record.trial.batch).items():
            called = name if len(part.batches) == 1 else f"{name}-{batch}"
            borrowed = logistic_of(folder, part, own)
            target = folder / called
            study = report.study_of([*own, *borrowed], settings, folder=target)
            for one in study.summed:  # the records are those of the finalists, not of all rates
                ends = _ends(tried[one.contender.loss])
                one.n_at_edge = sum(record.trial.rate in ends for record in one.chosen)
            written = report.write(study, settings, target, formats=("csv", "svg")).files
            figure = target / "figure3.svg"
            in_docs = docs is not None and name in IN_DOCS
            if docs is not None and in_docs:
                figure = figure.replace(docs / "assets" / f"study-{called}.svg")
                written = (*(file for file in written if file.is_file()), figure)
            files += written
            trials = [record for record in records if record.trial.batch == batch]
            intro = f"{introduction(part, settings, batch, trials, len(own))}{untrained(study)}"
            if borrowed:
                intro += f" The logistic loss is that of `{part.reference}`."
            body = f"{intro}\n\n{comparison(study, part)}\n"
            epochs = f"\n{by_epoch(study, settings.epochs)}\n"
            link = os.path.relpath(figure, folder)
            command = shlex.join(part.command(f"sqlite:///runs/study.db#{name}"))
            pages.append(f"## {called}\n\n    {command}\n\n{body}{epochs}\n![{ALT}]({link})\n")
            if not in_docs:
                continue
            shown.append(
                f"### {called}\n\n{body}{epochs if name == 'cifar10' else ''}\n"
                f"![{ALT}]({ASSETS}/{figure.name})\n"
            )
    figures = folder if docs is None else docs / "assets"
    timings, drawn = figure2.section(folder, figures)
    answers, plots = open_questions_report.write(folder, figures)
    files += [*drawn, *plots]
    assets = os.path.relpath(figures, folder)
    pages.append(f"## Figure 2\n\n{timings.format(assets=assets)}")
    for name, text in answers.items():
        title = open_questions_report.QUESTIONS[name][0]
        pages.append(f"## {title}\n\n{text.format(assets=assets)}")
    summaries = images_summaries.write(folder)
    pages += [f"## {title}\n\n{text}" for title, text in summaries.values()]
    if missing:
        pages.append("\n".join(["## Not complete, and not shown above", "", *missing, ""]))
    index = folder / "README.md"
    index.write_text("\n".join(pages))
    if docs is not None:
        texts = {
            "wins": f"{wins.table()}\n",
            "study": "\n".join(shown),
            "figure2": timings.format(assets=ASSETS),
            **{name: text for name, (_, text) in summaries.items()},
            **{name: text.format(assets=ASSETS) for name, text in answers.items()},
        }
        texts |= {
            "paper-table2": paper_tables.table2(folder, PAPER_TABLE2),
            "paper-figure3": paper_tables.figure3(folder, PAPER),
            "paper-figure2": timings.format(assets="assets"),
        }
        own = [folder.parent / "pages" / page for page in ("images.md", "open-questions.md")]
        filled = [docs / "evidence.md", docs / "paper.md", *own]
        fill(filled, {name: f"\n{text}\n" for name, text in texts.items()})
    return [*files, index]


def logistic_of(folder: Path, part: Part, records: Sequence[Record]) -> list[Record]:
    """Return the records of the logistic loss that a part is compared with, from another part.

    They have the imratios, batch sizes and seeds of `records`.
    """
    path = folder / f"{part.reference}.jsonl"
    if not part.reference or not path.is_file():
        return []
    cells = {(r.trial.cell.imratio, r.trial.batch, r.trial.cell.seed) for r in records}
    return [
        record
        for record in counted(PARTS[part.reference], read_rows(path)[1])
        if record.trial.cell.loss == "logistic"
        and (record.trial.cell.imratio, record.trial.batch, record.trial.cell.seed) in cells
    ]


def introduction(
    part: Part, settings: Settings, batch: int, trials: Sequence[Record], n_counted: int
) -> str:
    """Return a sentence with the settings of a part."""
    recipe = f", {settings.schedule} schedule" if settings.schedule != "constant" else ""
    recipe += f", optimiser {part.optimiser}" if part.optimiser != "sgd" else ""
    if settings.warm_start:
        recipe += f", the first {settings.warm_start} epochs with the logistic loss"
    rates = "rate" if part.finalists == 1 else f"{part.finalists} rates"
    minutes = sum(record.seconds for record in trials) / 60
    return (
        f"{display_name(part.data)}, batch {batch}, {settings.epochs} epochs, {settings.scores} "
        f"scores (logistic losses: raw, AUCM: sigmoid), {settings.sampler} batches{recipe}, "
        f"protocol {settings.protocol}, precision {settings.precision}. {len(trials)} trials in "
        f"{minutes:.0f} minutes, {n_counted} of them with the {rates} of each loss that count."
    )


def untrained(study: Study) -> str:
    """Return a sentence with the results that are those of untrained networks, if there are any."""
    found = [
        f"{display_name(one.contender.loss)} at imratio {one.comparison.imratio:g}, {n} of {one.n}"
        for one in study.summed
        if (n := sum(record.best_epoch == 0 for record in one.chosen))
    ]
    return f" Results of untrained networks, with best epoch 0: {'; '.join(found)}." * any(found)


def comparison(study: Study, part: Part) -> str:
    """Return the table of test AUCs beside those of the paper, in Markdown."""
    data = study.records[0].trial.cell.data
    return "\n".join(
        [f"| {HEAD} |", "|---" * (HEAD.count("|") + 1) + "|", *_table(data, study, part)]
    )


def by_epoch(study: Study, epochs: int) -> str:
    """Return the table of validation AUCs after parts of the epochs, in Markdown."""
    title = "Mean over seeds of the greatest validation AUC, had training ended earlier:"
    return "\n".join([title, "", *_epochs(study, epochs)])


def _table(data: str, study: Study, part: Part) -> Iterator[str]:
    paper = paper_values()
    tried = _rates(part)
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
                f"{one.rate:g}" + _ends(tried[loss]).get(one.rate, ""),
                gap,
                paper.get((data, imratio, loss), ""),
            ]
            yield f"| {' | '.join(cells)} |"


def _rates(part: Part) -> dict[str, Sequence[float]]:
    """Return the rates that were tried, by loss, with those of the logistic loss's part."""
    borrowed = _rates(PARTS[part.reference]) if part.reference else {}
    return {**borrowed, **part.blocks()[0].rates}


def _ends(tried: Sequence[float]) -> dict[float, str]:
    return {min(tried): " (smallest)", max(tried): " (largest)"}


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
