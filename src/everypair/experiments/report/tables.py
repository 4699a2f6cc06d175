"""The report's numbers as plain rows, from which all of its tables are written."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from everypair.experiments._terminal import printable
from everypair.experiments.plan import FULL_BATCH
from everypair.experiments.report.selection import Difference, Summary, gathered
from everypair.experiments.report.study import Study
from everypair.experiments.report.table_facts import TableFacts

Row = dict[str, Any]

CSV = {"table2": "selected", "figure3": "chosen", "differences": "differences"}
"""The tables that are written as CSV, by the name of the file."""

# Listed here so that a table without rows still has its header.
COLUMNS = {
    "chosen": "data imratio loss optimiser seed batch rate epoch validation_auc test_auc state",
    "differences": "data imratio first second n_seeds mean_difference low high verdict",
}


def key(summary: Summary) -> Row:
    """Return the columns that identify a summary."""
    return {**summary.comparison._asdict(), **summary.contender._asdict()}


def selected(summed: Sequence[Summary]) -> list[Row]:
    """Return the paper's table 2: median selected batch size and rate, and the test AUC."""
    return [
        {
            **key(summary),
            "n_seeds": summary.n,
            "mean_test_auc": summary.mean,
            "sd_test_auc": summary.sd,
            "median_batch": summary.batch,
            "median_rate": summary.rate,
            "n_rate_at_edge": summary.n_at_edge,
            "n_trials": len(summary.records),
            "n_diverged": summary.count("diverged"),
            "n_failed": summary.count("failed"),
            "seconds": round(sum(record.seconds for record in summary.records), 3),
        }
        for summary in summed
    ]


def chosen(summed: Sequence[Summary]) -> list[Row]:
    """Return the points of the paper's figure 3: the chosen trial of every seed."""
    return [
        {
            **key(summary),
            "seed": record.trial.cell.seed,
            "batch": record.trial.batch,
            "rate": record.trial.rate,
            "epoch": record.best_epoch,
            "validation_auc": record.validation_auc,
            "test_auc": record.test_auc,
            "state": record.state,
        }
        for summary in summed
        for record in summary.chosen
    ]


def differences(gaps: Sequence[Difference]) -> list[Row]:
    """Return the paired differences with their intervals."""
    return [
        {
            **gap.comparison._asdict(),
            "first": "+".join(gap.first),
            "second": "+".join(gap.second),
            "n_seeds": gap.n,
            "mean_difference": gap.mean,
            "low": gap.interval[0] if gap.interval else math.nan,
            "high": gap.interval[1] if gap.interval else math.nan,
            "verdict": gap.verdict,
        }
        for gap in gaps
    ]


def lost_trials(summed: Sequence[Summary]) -> list[Row]:
    """Return the trials that diverged or failed, by contender, rate and state."""
    rows = []
    for summary in summed:
        lost = [record for record in summary.records if record.state != "finished"]
        groups = gathered(lost, lambda record: (record.trial.rate, record.state))
        for (rate, state), records in groups.items():
            epochs = [record.diverged_at for record in records if record.diverged_at is not None]
            rows.append(
                {
                    **key(summary),
                    "rate": rate,
                    "state": state,
                    "n": len(records),
                    "n_tried": sum(record.trial.rate == rate for record in summary.records),
                    "first_epoch": min(epochs, default=None),
                    "last_epoch": max(epochs, default=None),
                    "reason": next((record.reason for record in records if record.reason), ""),
                }
            )
    return rows


def cost(summed: Sequence[Summary]) -> list[Row]:
    """Return the time of each contender, over all trials of all comparisons."""
    rows = []
    for who, parts in gathered(summed, lambda summary: summary.contender).items():
        records = [record for summary in parts for record in summary.records]
        seconds = sum(record.seconds for record in records)
        rows.append(
            {
                **who._asdict(),
                "n_trials": len(records),
                "seconds": round(seconds, 3),
                "seconds_per_trial": round(seconds / len(records), 3),
                "n_one_class_batches": sum(record.n_one_class for record in records),
                "devices": " ".join(sorted({record.device for record in records})),
            }
        )
    return rows


def grid_points(summary: Summary) -> list[Row]:
    """Return the mean validation AUC of every batch size (full last) and rate, over the seeds.

    More than 15 different rates (drawn by a sampler) are rounded to the nearest half decade.
    """
    drawn = {record.trial.rate for record in summary.records}
    free = len(drawn) > 15
    nearest = {r: 10 ** (round(2 * math.log10(r)) / 2) if free else r for r in drawn}
    groups = gathered(summary.records, lambda r: (r.trial.batch, nearest[r.trial.rate]))
    chosen = {id(record) for record in summary.chosen}
    points = []
    for batch, rate in sorted(groups, key=lambda place: (place[0] == FULL_BATCH, *place)):
        tried = groups[batch, rate]
        able = [r.validation_auc for r in tried if math.isfinite(r.validation_auc)]
        points.append(
            {
                "batch": batch,
                "rate": rate,
                "mean": fmean(able) if able else math.nan,
                "n": len(able),
                "n_lost": sum(record.state != "finished" for record in tried),
                "n_chosen": sum(id(record) in chosen for record in tried),
            }
        )
    return points


def everything(study: Study) -> dict[str, list[Row]]:
    """Return all tables by name."""
    return {
        "selected": selected(study.summed),
        "chosen": chosen(study.summed),
        "differences": differences(study.gaps),
        "lost": lost_trials(study.summed),
        "cost": cost(study.summed),
    }


def as_csv(rows: Sequence[Row], name: str = "") -> str:
    r"""Return the rows of a table as CSV with a header; NaN becomes an empty field.

    Text that a spreadsheet would take for a formula gets an apostrophe before it, and control
    characters are escaped.

    >>> as_csv([{"loss": "logistic", "sd": float("nan")}])
    'loss,sd\nlogistic,\n'
    """
    text = io.StringIO()
    columns = list(rows[0]) if rows else COLUMNS[name].split()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows([{name: _cell(value) for name, value in row.items()} for row in rows])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        value = printable(value)
        return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t")) else value
    return "" if value != value else value


def of_table(summary: Mapping[str, Any], facts: TableFacts) -> dict[str, list[Row]]:
    """Return the tables about the models and columns of a table, by the name of their file."""
    names = ("name", "family", "loss", "weight", "validation_auc", "test_auc", "difference")
    contenders = []
    for one in summary["contenders"]:
        low, high = one.get("interval") or (math.nan, math.nan)
        contenders.append({**{name: one.get(name, "") for name in names}, "low": low, "high": high})
    found = {"contenders": contenders}
    if facts.scores:
        found["thresholds"] = [one._asdict() for one in facts.scores.thresholds()]
    if facts.data:
        keys = ("name", "use", "kind", "missing", "distinct", "note")
        found["columns"] = [{k: c.get(k, "") for k in keys} for c in facts.data["columns"]]
    return {name: rows for name, rows in found.items() if rows}
