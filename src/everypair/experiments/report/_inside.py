"""One comparison from inside: learning curves, ROC curves, and the whole grid."""

from __future__ import annotations

import math
from html import escape

from everypair.experiments.report import curves, tables, wording
from everypair.experiments.report._charts import Axis, Line, key, plot, said_range
from everypair.experiments.report._html import colour
from everypair.experiments.report.selection import Summary, Task, gathered
from everypair.experiments.report.study import Study

__all__ = ["inside", "picker"]


def picker(study: Study) -> str:
    """Return the radio buttons that choose a comparison; one needs none."""
    tasks = list(study.by_task)
    if len(tasks) < 2:
        return ""
    parts = []
    for name, group in gathered(tasks, lambda task: task.data).items():
        legend = escape(wording.data(name, study.settings))
        buttons = "".join(
            f'<input type="radio" name="task" id="pick-{k}" value="task-{k}"'
            f"{' checked' if k == 0 else ''}>"
            f'<label for="pick-{k}">{wording.imratio(task.imratio)}</label>'
            for k, task in enumerate(tasks)
            if task in group
        )
        parts.append(
            f"<fieldset><legend>{legend} <small>imratio</small></legend>{buttons}</fieldset>"
        )
    return f'<div class="picker">{"".join(parts)}</div>'


def inside(study: Study) -> str:
    """Return a section a comparison; the picker shows one of them, paper shows all."""
    return "".join(
        f'<section class="task" id="task-{k}"><h3>{escape(wording.task(task, study.settings))}</h3>'
        f"{_learning(study, task)}{_roc(study, task)}{_heat(study, task)}</section>"
        for k, task in enumerate(study.by_task)
    )


def _learning(study: Study, task: Task) -> str:
    summed = [summary for summary in study.by_task[task] if summary.chosen]
    if not summed:
        return "<p>No trial has a validation AUC.</p>"
    values = [
        value
        for summary in summed
        for record in summary.chosen
        for part in curves.PARTS
        for value in curves.column(record, f"{part}_auc")
    ]
    y = Axis(*curves.limits(values, within=(0, 1)), "AUC")
    figures = "".join(_curves_of(study, summary, y) for summary in summed)
    legend = key([("", part, part) for part in curves.PARTS] + [("", "thin", "a seed, validation")])
    return (
        "<h4>Learning curves of the selected trials</h4><p>Means over seeds; a ring is the epoch "
        "that was chosen for a seed. Point at a plot, or focus it and use the arrow keys.</p>"
        f'{legend}<div class="plots">{figures}</div>'
    )


def _curves_of(study: Study, summary: Summary, y: Axis) -> str:
    shade = colour(study, summary.contender)
    seeds = [
        Line(
            curves.column(record, "validation_auc"),
            shade,
            "thin",
            marks=[record.best_epoch] if record.best_epoch >= 0 else [],
        )
        for record in summary.chosen
    ]
    last = max(len(line.values) for line in seeds) - 1
    x = Axis(0, max(1, last), "epoch")
    means = {part: curves.mean_column(summary, f"{part}_auc") for part in curves.PARTS}
    lines = [Line(means[part], shade, part, part) for part in curves.PARTS]
    name = wording.contender(summary.contender)
    said = "; ".join(said_range(part, means[part]) for part in curves.PARTS)
    drawn = plot(seeds + lines, x, y, step=1, label=f"AUC by epoch, {name}. {said}.")
    return (
        f'<figure><figcaption><span class="dot {shade}"></span><b>{escape(name)}</b></figcaption>'
        f"{_named('AUC', drawn)}{_loss_of(summary, shade, x, name)}</figure>"
    )


def _loss_of(summary: Summary, shade: str, x: Axis, name: str) -> str:
    parts = curves.PARTS[:2]
    means = {part: curves.mean_column(summary, f"{part}_loss") for part in parts}
    values = [v for mean in means.values() for v in mean if math.isfinite(v)]
    if not values:
        return ""
    log = min(values) > 0 and max(values) > 10 * min(values)
    low, high = min(values), max(values)
    if log:
        y = Axis(low / 1.1, high * 1.1, "loss", log=True)
    else:
        y = Axis(*curves.limits(values, within=(min(0, low), math.inf)), "loss")
    lines = [Line(means[part], shade, part, part) for part in parts]
    said = "; ".join(said_range(part, means[part]) for part in parts)
    drawn = plot(lines, x, y, step=1, label=f"Loss by epoch, {name}. {said}.")
    return _named("its own loss" + ", log scale" * log, drawn)


def _named(what: str, drawn: str) -> str:
    """Write above a plot what stands upward."""
    return drawn.replace(
        '<script type="app',
        f'<div class="what" aria-hidden="true">{what}</div><script type="app',
        1,
    )


def _roc(study: Study, task: Task) -> str:
    drawable = [
        (summary, curve) for summary in study.by_task[task] if (curve := curves.mean_roc(summary))
    ]
    if not drawable:
        return ""
    styles = ("", "dash", "dots")
    entries, lines = [], []
    for k, (summary, curve) in enumerate(drawable):
        shade, style = colour(study, summary.contender), styles[k % len(styles)]
        name = wording.contender(summary.contender)
        entries.append((shade, style, f"{name}, AUC {wording.auc(summary.mean)}"))
        lines.append(Line(curve, shade, style, name))
    x, y = Axis(0, 1, "false positive rate"), Axis(0, 1, "true positive rate")
    said = "; ".join(text for _, _, text in entries)
    lines.insert(0, Line(curves.FPR, "", "chance"))
    drawn = plot(lines, x, y, step=0.01, label=f"ROC curves on the test set. {said}.")
    return (
        "<h4>ROC curves of the selected models</h4><p>On the test set; true positive rates are "
        f'averaged over seeds at equal false positive rates.</p><figure class="wide">{key(entries)}'
        f"{_named('true positive rate', drawn)}</figure>"
    )


def _heat(study: Study, task: Task) -> str:
    grids = [(summary, tables.grid_points(summary)) for summary in study.by_task[task]]
    means = [p.mean for _, points in grids for p in points if math.isfinite(p.mean)]
    low, high = (min(means), max(means)) if means else (0.0, 1.0)
    parts = "".join(
        _heat_of(study, summary, points, Axis(low, high + 1e-9, "")) for summary, points in grids
    )
    return (
        "<h4>Validation AUC over the grid</h4><p>Means over seeds of the best epoch; the stronger "
        "the colour, the greater. ★ marks what was selected, with the number of seeds; ✕ counts "
        f'trials that diverged or failed.</p><div class="grids">{parts}</div>'
    )


def _heat_of(study: Study, summary: Summary, points: list[tables.GridPoint], scale: Axis) -> str:
    rates = sorted({point.rate for point in points})
    rows = gathered(points, lambda point: point.batch)
    head = "".join(f'<th scope="col" class="number">{wording.rate(rate)}</th>' for rate in rates)
    body = ""
    for batch, found in rows.items():
        at = {point.rate: point for point in found}
        cells = "".join(_heat_cell(at.get(rate), scale) for rate in rates)
        body += f'<tr><th scope="row">{wording.batch(batch)}</th>{cells}</tr>'
    name = escape(wording.contender(summary.contender))
    return (
        f'<div class="scroll {colour(study, summary.contender)}" role="region" tabindex="0" '
        f'aria-label="Grid of {name}"><table class="heat"><caption><span><i class="dot"></i>'
        f'{name}, batch size by rate</span></caption><thead><tr><th scope="col">batch</th>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _heat_cell(point: tables.GridPoint | None, scale: Axis) -> str:
    if point is None:
        return '<td class="none" style="--p:0">·</td>'
    n_lost = point.n_diverged + point.n_failed
    star = f' <span class="star">★{point.n_chosen}</span>' if point.n_chosen else ""
    cross = f" <small>✕{n_lost}</small>" if n_lost else ""
    shade = 0 if math.isnan(point.mean) else 4 + 0.5 * scale.share(point.mean)
    return f'<td style="--p:{shade:.0f}">{star}{cross} {wording.auc(point.mean)}</td>'
