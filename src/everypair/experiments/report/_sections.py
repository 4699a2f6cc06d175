"""Sections of the page that span all comparisons: results, differences, selection, losses, cost."""

from __future__ import annotations

from html import escape
from math import inf

from everypair.experiments.plan import FULL_BATCH
from everypair.experiments.report import curves, tables, wording
from everypair.experiments.report._charts import Axis, axis_labels, difference_strip, strip
from everypair.experiments.report._html import Value, colour, short, table, who
from everypair.experiments.report.selection import Contender, Summary, Task, gathered
from everypair.experiments.report.study import Study

__all__ = ["cost", "differences", "differences_text", "lost", "results", "selected"]


def results(study: Study) -> str:
    """Return the paper's figure 3 as cards: a strip a contender, and what can be said."""
    parts = []
    for name, tasks in gathered(study.by_task, lambda task: task.data).items():
        cards = "".join(_card(study, task) for task in tasks)
        heading = escape(wording.data(name, study.settings))
        parts.append(f'<h3>{heading}</h3><div class="cards">{cards}</div>')
    return "".join(parts)


def _card(study: Study, task: Task) -> str:
    summed = study.by_task[task]
    reached = [
        end
        for s in summed
        for end in (s.mean - s.sd, s.mean + s.sd, *(record.test_auc for record in s.chosen))
    ]
    axis = Axis(*curves.limits(reached, within=(0, 1)), "test AUC")
    place = study.standings.get(task)
    said = wording.standing(place, study.called) if place else "No trial has a validation AUC."
    head = f"imratio {task.imratio:g}" if task.imratio else "positives as they are"
    rows = "".join(_row(study, summary, axis) for summary in summed)
    return (
        f'<article class="card"><h4>{head}</h4>{rows}'
        f'<div class="scale" aria-hidden="true">{axis_labels(axis, "left")}</div>'
        f'<p class="said">{escape(said)}</p></article>'
    )


def _row(study: Study, summary: Summary, axis: Axis) -> str:
    seeds = "\n".join(
        f"seed {record.trial.cell.seed}: {record.test_auc:.4f}" for record in summary.chosen
    )
    tip = f"{wording.amount(summary.n, 'seed')}, test AUC\n{seeds}"
    return (
        f'<div class="row" tabindex="0" data-tip="{escape(tip)}">'
        f"<p><b>{who(study, summary.contender)}</b>"
        f'<span class="value">{wording.spread(summary.mean, summary.sd)}'
        f'<span class="unseen"> test AUC, {wording.amount(summary.n, "seed")}</span></span></p>'
        f"{strip(summary, colour(study, summary.contender), axis)}</div>"
    )


def differences_text(study: Study) -> str:
    """Explain the intervals, and how many of them luck would move."""
    known = sum(gap.interval is not None for gap in study.gaps)
    text = (
        "Test AUC of the first minus the second, seed by seed, since a seed gives both the same "
        "split and the same first weights. The interval is Student's at 95 %; where it holds 0 "
        "the two tie. "
    )
    if known > 1:
        text += (
            f"If all contenders were equal, about {known / 20:.2g} of these {known} intervals "
            "would still miss 0. "
        )
    if known < len(study.gaps):
        text += "A single seed gives no interval, and nothing can be said: run more seeds. "
    return (
        text + "Intervals cover other splits and first weights; where the data have an official "
        "test set all seeds share it, and they do not cover another one."
    )


def differences(study: Study) -> str:
    """Return the paired differences, with a strip about zero each."""
    if not study.gaps:
        return "<p>There is only one contender: nothing to compare.</p>"
    furthest = max((abs(gap.mean) for gap in study.gaps if gap.n), default=0)
    reach = max((abs(end) for gap in study.gaps for end in gap.interval or ()), default=furthest)
    limit = min(reach, 4 * furthest) or reach or 1
    rows = [
        [
            Value(escape(wording.data(gap.task.data, study.settings))),
            _imratio(gap.task),
            Value(f"{short(study, gap.first)} <small>−</small> {short(study, gap.second)}"),
            Value(wording.signed(gap.mean), gap.mean),
            Value(difference_strip(gap, limit)),
            Value(wording.interval(gap)),
            Value(str(gap.n), gap.n),
            Value(f'<span class="tag {gap.verdict}">{escape(said)}</span>'),
        ]
        for gap in study.gaps
        for said in [wording.ahead(gap, study.called)]
    ]
    heads = [
        "Data",
        "Imratio",
        "Contenders",
        "Mean",
        "Around 0",
        "95 % interval",
        "Seeds",
        "Ahead",
    ]
    return table("Paired differences in test AUC", heads, rows)


def selected(study: Study) -> str:
    """Return the paper's table 2."""
    rows = []
    for summary in study.summed:
        n_lost = summary.count("diverged") + summary.count("failed")
        n_edge = summary.n_at_edge
        rows.append(
            [
                Value(escape(wording.data(summary.task.data, study.settings))),
                _imratio(summary.task),
                Value(who(study, summary.contender)),
                Value(wording.spread(summary.mean, summary.sd), summary.mean),
                Value(str(summary.n), summary.n),
                Value(
                    wording.batch(summary.batch),
                    inf if summary.batch == FULL_BATCH else summary.batch,
                ),
                Value(wording.rate(summary.rate), summary.rate),
                Value(
                    f'<span class="edge">{n_edge} of {summary.n}</span>' if n_edge else "no", n_edge
                ),
                Value(f"{n_lost} of {len(summary.records)}", n_lost),
            ]
        )
    heads = [
        "Data",
        "Imratio",
        "Loss",
        "Test AUC",
        "Seeds",
        "Batch",
        "Rate",
        "At the edge",
        "Lost trials",
    ]
    caption = "Mean ± standard deviation of the test AUC, median selected batch size and rate"
    return table(caption, heads, rows)


def lost(study: Study) -> str:
    """Return what diverged or failed, at which rates, and why."""
    rows = [
        [
            Value(escape(wording.data(row["data"], study.settings))),
            _imratio(Task(row["data"], row["imratio"])),
            Value(who(study, Contender(row["loss"], row["optimiser"]))),
            Value(wording.rate(row["rate"]), row["rate"]),
            Value(row["state"]),
            Value(f"{row['n']} of {row['n_tried']}", row["n"]),
            Value(_epochs(row["first_epoch"], row["last_epoch"])),
            Value(escape(row["reason"]), kind="wrap"),
        ]
        for row in tables.losses_of_trials(study.summed)
    ]
    if not rows:
        return "<p>Nothing: every trial ran to its end.</p>"
    heads = ["Data", "Imratio", "Loss", "Rate", "State", "Trials", "Epoch", "Why"]
    kept = (
        "<p>A diverged trial competes with the epochs before it diverged; "
        "a failed one does not compete.</p>"
    )
    return kept + table("Trials that did not reach their end, by rate", heads, rows)


def cost(study: Study) -> str:
    """Return the time of every contender."""
    rows = [
        [
            Value(who(study, Contender(row["loss"], row["optimiser"]))),
            Value(f"{row['n_trials']:,}", row["n_trials"]),
            Value(wording.duration(row["seconds"]), row["seconds"]),
            Value(wording.duration(row["seconds_per_trial"]), row["seconds_per_trial"]),
            Value(f"{row['n_one_class_batches']:,}", row["n_one_class_batches"]),
            Value(escape(row["devices"])),
        ]
        for row in tables.cost(study.summed)
    ]
    heads = ["Loss", "Trials", "Time of all", "A trial", "Batches without a pair", "Device"]
    return table("Time in training and evaluation, over all workers", heads, rows)


def _imratio(task: Task) -> Value:
    return Value(wording.imratio(task.imratio), task.imratio)


def _epochs(first: int | None, last: int | None) -> str:
    if first is None:
        return wording.NOTHING
    return str(first) if first == last else f"{first} to {last}"
