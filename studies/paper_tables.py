"""The paper's table 2 and figure 3 beside the rows of studies, for docs/paper.md.

Rows in which batch size and rate were selected together come first: those of the joint parts, and
the batch sizes of CIFAR10 with 1 % positives. Figure 3 falls back on the parts with batches of 100.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median_low, stdev
from typing import NamedTuple

from everypair.experiments.display_names import display_name
from everypair.experiments.plan import Record
from everypair.experiments.report.selection import gathered, results
from studies.images import PARTS, counted, read_rows
from studies.open_questions_report import table

JOINT = (("cifar10-joint",), ("catdog-joint",), ("stl10-joint",), ("cifar10", "cifar10-batches"))
"""Parts that select batch size and rate together. The first group that has a cell provides it."""

FIXED = (("cifar10",), ("catdog",), ("stl10",))
"""Parts with batches of 100."""

Cell = tuple[str, float, str]
"""Data set, imratio and loss."""


class Selected(NamedTuple):
    """The record of each seed with the greatest validation AUC, and where it comes from."""

    parts: tuple[str, ...]
    records: list[Record]
    batches: list[int]  # those that could be selected


def selections(folder: Path, groups: Sequence[tuple[str, ...]]) -> dict[Cell, Selected]:
    """Select by validation AUC in the rows of each group of parts, in the order of the groups."""
    found: dict[Cell, Selected] = {}
    for parts in groups:
        if not all(name in PARTS and (folder / f"{name}.jsonl").is_file() for name in parts):
            continue
        records: list[Record] = []
        for name in parts:
            records += counted(PARTS[name], read_rows(folder / f"{name}.jsonl")[1])
        batches = {
            (imratio, batch)
            for name in parts
            for imratio in PARTS[name].imratios
            for batch in PARTS[name].batches
        }
        own = gathered(
            results(records), lambda one: (one.cell.data, one.cell.imratio, one.cell.loss)
        )
        for cell, seeds in own.items():
            sizes = sorted(batch for imratio, batch in batches if imratio == cell[1])
            winners = [one.winner for one in seeds if one.winner is not None]
            if winners and (len(sizes) > 1 or groups is FIXED):
                found.setdefault(cell, Selected(parts, winners, sizes))
    return found


def table2(folder: Path, paper: Path) -> str:
    """Return the selected batch sizes and rates beside those of the paper, in Markdown."""
    joint, lines = selections(folder, JOINT), []
    rows = _rows(paper)
    for cell, row in rows.items():
        own = joint.get(cell)
        ours, tried, parts = "not run", "none", _command(cell)
        if own is not None:
            trials = [record.trial for record in own.records]
            batch, rate = (median_low(getattr(t, x) for t in trials) for x in ("batch", "rate"))
            ours = f"{batch:g}, {rate:g}"
            tried = ", ".join(map(str, own.batches))
            parts = _code(own)
        theirs = f"{row['batch']}, {float(row['rate']):g}"
        lines.append([*_names(cell), theirs, ours, tried, parts])
    count = sum(cell in joint for cell in rows)
    head = "data | imratio | loss | paper: batch, rate | here: batch, rate | batches tried | rows"
    title = f"Batch size and rate were selected together in {count} of {len(lines)} cells."
    return f"{title}\n\n{table(head, lines)}\n"


def figure3(folder: Path, paper: Path) -> str:
    """Return the test AUCs beside those of the paper, in Markdown."""
    found = {**selections(folder, FIXED), **selections(folder, JOINT)}
    rows, lines = _rows(paper), []
    means: dict[tuple[object, ...], dict[str, tuple[float, float]]] = {}
    for cell, row in rows.items():
        own, ours, what = found.get(cell), "not run", _command(cell)
        if own is not None:
            aucs = [record.test_auc for record in own.records]
            spread = f" ± {stdev(aucs):.3f}" if len(aucs) > 1 else ""
            ours = f"{fmean(aucs):.3f}{spread} ({len(aucs)} seeds)"
            what = f"batch {', '.join(map(str, own.batches))}: {_code(own)}"
            place = (*cell[:2], own.parts)
            means.setdefault(place, {})[cell[2]] = fmean(aucs), float(row["mean"])
        lines.append([*_names(cell), f"{row['mean']} ± {row['sd']}", ours, what])
    n_losses = len({loss for *_, loss in rows})
    full = [own for own in means.values() if len(own) == n_losses]
    same = sum(_best(own, 0) == _best(own, 1) for own in full)
    ahead = [sum(_best(own, k) == "squared_hinge" for own in full) for k in (0, 1)]
    title = (
        f"The loss with the greatest mean is the same as in the paper for {same} of {len(full)} "
        f"pairs of data set and imratio. It is the squared hinge for {ahead[0]} of them here, and "
        f"for {ahead[1]} in the paper; these are means without their errors."
    )
    head = "data | imratio | loss | paper | here | rows"
    return f"{title}\n\n{table(head, lines)}\n"


def _best(means: Mapping[str, tuple[float, float]], k: int) -> str:
    return max(means, key=lambda loss: means[loss][k])


def _command(cell: Cell) -> str:
    name = f"{cell[0]}-joint"
    defined = name in PARTS and cell[1] in PARTS[name].imratios
    return f"none: `images run {name}`" if defined else "none: no part has this cell"


def _code(own: Selected) -> str:
    return ", ".join(f"`{name}`" for name in own.parts)


def _names(cell: Cell) -> list[str]:
    return [display_name(cell[0]), f"{cell[1]:g}", display_name(cell[2])]


def _rows(path: Path) -> dict[Cell, dict[str, str]]:
    with path.open() as file:
        rows = {(r["data"], float(r["imratio"]), r["loss"]): r for r in csv.DictReader(file)}
    return dict(sorted(rows.items(), key=lambda item: (item[0][0], -item[0][1])))
