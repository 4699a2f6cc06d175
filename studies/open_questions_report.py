"""Tables and plots of the paper's open questions, from the rows in results/.

`write` draws one figure for each question that has rows, and returns the tables in Markdown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median_low
from typing import TYPE_CHECKING, Any

from everypair.experiments.display_names import display_name
from everypair.experiments.figures.output import save, styled
from everypair.experiments.intervals import resampled_interval
from everypair.experiments.plan import FULL_BATCH, Record
from everypair.experiments.report.selection import TEST_SHARE
from studies import condition_number, open_questions
from studies.images import PARTS, chosen, counted, read_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "squared_hinge": "#0b62c4",
    "linear_hinge": "#2a9d8f",
    "logistic": "#555555",
    "weighted_logistic": "#8172b3",
}
OWN = "open_questions run"
Gaps = Mapping[Any, tuple[float, float, float]]
"""Mean differences of test AUCs with their intervals, by comparison."""
STYLES = {"sgd": "-", "sag": "--", "lbfgs": ":"}


def mean_auc(records: Mapping[int, Record]) -> str:
    """Return the mean test AUC over the seeds, as text."""
    return f"{fmean(r.test_auc for r in records.values()):.3f}"


def gap(ours: Mapping[int, Record], theirs: Mapping[int, Record]) -> tuple[float, float, float]:
    """Return the mean difference of test AUCs over the common seeds, and its interval."""
    differences = [ours[seed].test_auc - theirs[seed].test_auc for seed in ours if seed in theirs]
    low, high = resampled_interval(differences, TEST_SHARE) or (float("nan"),) * 2
    return fmean(differences), low, high


def gap_text(found: tuple[float, float, float]) -> str:
    """Return a difference and its interval, as text."""
    return f"{found[0]:+.3f} ({found[1]:.3f} to {found[2]:.3f})"


def table(head: str, lines: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown; `head` has the titles of the columns with bars between them."""
    rule = "|---" * (head.count("|") + 1) + "|"
    return "\n".join([f"| {head} |", rule, *(f"| {' | '.join(map(str, x))} |" for x in lines)])


def _gaps_figure(gaps: Mapping[str, tuple[float, float, float]], label: str) -> Figure:
    """Draw differences with their intervals, one line each."""
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(6.4, 0.9 + 0.32 * len(gaps)), layout="constrained")
        axes = figure.subplots()
        for place, (mean, low, high) in enumerate(gaps.values()):
            axes.plot([low, high], [place, place], color="#0b62c4", linewidth=2)
            axes.plot([mean], [place], "o", color="#0b62c4")
        axes.axvline(0.0, color="#999999", linewidth=1)
        axes.set_yticks(range(len(gaps)), list(gaps))
        axes.invert_yaxis()
        axes.set_xlabel(label)
    return figure


def condition(folder: Path) -> tuple[str, None]:
    """Compare L-BFGS with SGD on badly conditioned columns."""
    return condition_number.table(), None


def answers(folder: Path) -> tuple[str, None] | None:
    """Return one answer to each open question of the paper, with what the rows show."""
    linear, scores = hinge_gaps(folder), score_gaps(folder)
    lbfgs, sag = (optimiser_gaps(folder, name) for name in ("lbfgs", "sag"))
    if not (linear and scores and lbfgs and sag):
        return None
    on_table = "with SGD, on one table with standardised columns"
    rose, risen, others, kept = warned_by_the_first_epoch(folder)
    answer = {
        ("Linear hinge", OWN): f"{ties(linear)} with the squared hinge, on three tables",
        ("Sigmoid or linear last layer", "images run"): f"{ties(scores)} on CIFAR10, raw minus "
        "sigmoid scores, on which the squared hinge is the square loss",
        ("L-BFGS, bad condition number", "condition_number run"): "simulated, 1 to 1e8, linear "
        f"model: ahead of SGD with {_ahead('all rows')}, of SGD with {_ahead('batches of 100')}",
        ("L-BFGS elsewhere", OWN): f"{ties(lbfgs)} {on_table}",
        ("Stochastic average gradient", OWN): f"{ties(sag)} {on_table}",
        ("Monitoring the loss", OWN): "it shows steps that are too large: validation AUC selected "
        f"{risen} of {rose} trainings whose training loss had risen after one epoch, and {kept} of "
        f"the other {others}",
    }
    lines = [[name, text, f"`{command}`"] for (name, command), text in answer.items()]
    return table("question | answer | from", lines), None


def _ahead(method: str) -> str:
    """Return at which condition numbers L-BFGS is ahead of SGD, and by how much."""
    leads = {c: condition_number.lead(c, f"SGD, {method}") for c in condition_number.CONDITIONS}
    won = {c: lead for c, lead in leads.items() if lead[1] > 0.0}
    powers = ", ".join(f"1e{round(math.log10(c))}" for c in won)
    return f"{method} at {powers or 'none'} ({span(won)})"


def ties(gaps: Gaps) -> str:
    """Return how many of the intervals include 0, and the range of the differences."""
    n = sum(low <= 0.0 <= high for _, low, high in gaps.values())
    return f"ties in {n} of {len(gaps)} comparisons ({span(gaps)})"


def span(gaps: Gaps) -> str:
    """Return the smallest and the largest mean difference."""
    means = [mean for mean, _, _ in gaps.values()]
    return f"{min(means):+.3f} to {max(means):+.3f}" if means else "-"


def hinge_gaps(folder: Path) -> Gaps:
    """Return the test AUC of the linear minus the squared hinge, by data and model."""
    return {where: gap(own["linear_hinge"], own["squared_hinge"]) for where, own in _hinges(folder)}


def score_gaps(folder: Path) -> Gaps:
    """Return the test AUC of raw minus sigmoid scores on CIFAR10, by share of positives."""
    sigmoid, raw = (
        chosen(folder / f"{name}.jsonl", PARTS[name]) for name in ("cifar10", "cifar10-raw")
    )
    return {
        f"CIFAR10, {100 * key[0]:g} % positives": gap(raw[key], sigmoid[key])
        for key in sigmoid
        if key[2] == "squared_hinge" and key in raw
    }


def optimiser_gaps(folder: Path, optimiser: str) -> Gaps:
    """Return the test AUC of an optimiser minus that of SGD, by model and loss."""
    found = {}
    for model in open_questions.MODELS:
        parts = (f"optimisers-{model}-{name}" for name in (optimiser, "sgd"))
        ours, sgd = (
            {key[2]: seeds for key, seeds in chosen(path, open_questions.OPTIMISERS[part]).items()}
            for part in parts
            for path in [folder / open_questions.FOLDER / f"{part}.jsonl"]
        )
        found |= {(model, loss): gap(ours[loss], sgd[loss]) for loss in ours.keys() & sgd.keys()}
    return found


def warned_by_the_first_epoch(folder: Path) -> tuple[int, int, int, int]:
    """Count trainings of the first seed by their training loss after one epoch.

    Returns how many have a larger one than before the epoch (or diverged), how many of these
    validation AUC selects, and both numbers for the others.
    """
    counts = [0, 0, 0, 0]
    for name, part in (open_questions.HINGES | open_questions.OPTIMISERS).items():
        records = read_rows(folder / open_questions.FOLDER / f"{name}.jsonl")[1]
        kept = counted(part, records)
        for record in records:
            if record.trial.cell.seed != part.seeds[0]:
                continue
            losses = record.history["subtrain_loss"]
            place = 0 if len(losses) < 2 or losses[1] > losses[0] else 2
            counts[place] += 1
            counts[place + 1] += record in kept
    return counts[0], counts[1], counts[2], counts[3]


def _hinges(folder: Path) -> Iterator[tuple[str, dict[str, dict[int, Record]]]]:
    for name, part in open_questions.HINGES.items():
        found = chosen(folder / open_questions.FOLDER / f"{name}.jsonl", part)
        by_loss = {loss: dict(seeds) for (_, _, loss), seeds in found.items()}
        if {"squared_hinge", "linear_hinge", "logistic"} <= by_loss.keys():
            yield f"{part.data}, {display_name(part.settings.model)}", by_loss


def hinges(folder: Path) -> tuple[str, Figure] | None:
    """Compare the linear with the squared hinge."""
    lines, gaps = [], hinge_gaps(folder)
    for where, by_loss in _hinges(folder):
        aucs = [mean_auc(by_loss[loss]) for loss in ("linear_hinge", "squared_hinge", "logistic")]
        lines.append([where, *aucs, gap_text(gaps[where])])
    if not lines:
        return None
    head = "data, model | linear hinge | squared hinge | logistic | linear minus squared hinge"
    return table(head, lines), _gaps_figure(gaps, "test AUC, linear minus squared hinge")


def last_layers(folder: Path) -> tuple[str, Figure] | None:
    """Compare raw scores with sigmoid scores of the squared hinge on CIFAR10."""
    sigmoid, raw = (
        chosen(folder / f"{name}.jsonl", PARTS[name]) for name in ("cifar10", "cifar10-raw")
    )
    lines, gaps = [], score_gaps(folder)
    for key in sigmoid:
        if key[2] == "squared_hinge" and key in raw:
            where = f"CIFAR10, {100 * key[0]:g} % positives"
            lines.append([where, mean_auc(raw[key]), mean_auc(sigmoid[key]), gap_text(gaps[where])])
    if not lines:
        return None
    head = "data | raw scores | sigmoid scores | raw minus sigmoid"
    return table(head, lines), _gaps_figure(gaps, "test AUC, raw minus sigmoid scores")


def optimisers(folder: Path) -> tuple[str, Figure] | None:
    """Compare SGD, SAG and L-BFGS."""
    from matplotlib.figure import Figure

    lines: list[list[object]] = []
    by_sgd: dict[tuple[str, str], dict[int, Record]] = {}  # by model and loss; SGD comes first
    with styled():
        figure = Figure(figsize=(8.0, 5.6), layout="constrained")
        panels: dict[tuple[str, str], Axes] = {}
        grid = figure.subplots(2, 2, sharex=True)
        for row, model in zip(grid, open_questions.MODELS, strict=True):
            for axes, loss in zip(row, ("squared_hinge", "logistic"), strict=True):
                axes.set_title(f"{display_name(loss)}, {display_name(model)}")
                axes.set(xlabel="epoch", ylabel="loss of the training rows", yscale="log")
                panels[model, loss] = axes
        for name, part in open_questions.OPTIMISERS.items():
            found = chosen(folder / open_questions.FOLDER / f"{name}.jsonl", part)
            for (_, _, loss), seeds in found.items():
                model, optimiser = part.settings.model, display_name(part.optimiser)
                curve = _mean_curve(seeds.values(), "subtrain_loss")
                style = STYLES[part.optimiser]
                panels[model, loss].plot(curve, style, color=COLOURS[loss], label=optimiser)
                best = fmean(r.best_epoch for r in seeds.values())
                base = by_sgd.setdefault((model, loss), seeds)
                ahead = "" if base is seeds else gap_text(gap(seeds, base))
                cells = [mean_auc(seeds), ahead, f"{curve[-1]:.3g}", f"{best:.0f}"]
                where = [display_name(model), display_name(loss), optimiser]
                lines.append([*where, _rate(seeds), *cells])
        for axes in panels.values():
            if axes.lines:
                axes.legend()
    if not lines:
        return None
    lines.sort(key=lambda line: (str(line[0]), str(line[1])))
    head = "model | loss | optimiser | rate | test AUC | minus SGD | training loss at the end"
    head += " | best epoch"
    return table(head, lines), figure


def _mean_curve(records: object, column: str) -> list[float]:
    columns = [record.history[column] for record in records]  # type: ignore[attr-defined]
    return [fmean(values) for values in zip(*columns, strict=False)]


def batch_sizes(folder: Path) -> tuple[str, Figure] | None:
    """Compare batch sizes with few positives, with and without stratified batches."""
    from matplotlib.figure import Figure

    lines, curves = [], {}
    for name, part in open_questions.BATCHES.items():
        found = chosen(folder / open_questions.FOLDER / f"{name}.jsonl", part)
        for loss in part.losses:
            own = {batch: seeds for (_, batch, other), seeds in found.items() if other == loss}
            if own:
                curves[loss, part.settings.sampler] = own
    if not curves:
        return None
    batches = open_questions.BATCHES["batches-shuffle"].batches
    with styled():
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        for (loss, sampler), own in curves.items():
            places = [batches.index(batch) for batch in own]
            aucs = [[r.test_auc for r in seeds.values()] for seeds in own.values()]
            style = "--" if sampler == "stratified" else "-"
            label = f"{display_name(loss)}, {sampler}"
            axes.plot(
                places, [fmean(x) for x in aucs], f"o{style}", color=COLOURS[loss], label=label
            )
            for place, values in zip(places, aucs, strict=True):
                axes.plot([place] * len(values), values, ".", color=COLOURS[loss], alpha=0.3)
            cells = [f"{mean_auc(own[b])} ({_rate(own[b])})" if b in own else "" for b in batches]
            lines.append([display_name(loss), sampler, *cells])
        axes.set_xticks(range(len(batches)), [_size(batch) for batch in batches])
        axes.set(xlabel="rows in a batch", ylabel="test AUC")
        axes.legend()
    head = f"loss | batches | {' | '.join(_size(batch) for batch in batches)}"
    return table(head, lines), figure


def _rate(records: Mapping[int, Record]) -> str:
    return f"{median_low(r.trial.rate for r in records.values()):g}"


def _size(batch: int) -> str:
    return "all rows" if batch == FULL_BATCH else f"{batch:,}"


QUESTIONS: dict[str, tuple[str, Callable[[Path], tuple[str, Figure | None] | None]]] = {
    "answers": ("The open questions of the paper", answers),
    "condition": ("L-BFGS on badly conditioned columns", condition),
    "hinges": ("Linear and squared hinge", hinges),
    "last-layer": ("Raw and sigmoid scores", last_layers),
    "optimisers": ("SGD, SAG and L-BFGS", optimisers),
    "batch-sizes": ("Batch sizes with 0.1 % positives", batch_sizes),
}
"""By name: the title, and a function that returns a table and perhaps a figure; None: no rows."""


def write(folder: Path, figures: Path) -> tuple[dict[str, str], list[Path]]:
    """Draw the figures; return the tables by name of the question, and the files."""
    tables, files = {}, []
    for name, (title, question) in QUESTIONS.items():
        answer = question(folder)
        if answer is None:
            continue
        if answer[1] is None:
            tables[name] = f"{answer[0]}\n"
            continue
        path = figures / f"study-{name}.svg"
        save(path, answer[1])
        files.append(path)
        tables[name] = f"{answer[0]}\n\n![{title}]({{assets}}/{path.name})\n"
    return tables, files
