"""Tune on one seed and confirm on all: every combination on the first seed, the best on the others.

>>> from everypair.experiments.plan import Record
>>> grid = Grid("digits", (0.1,), ("square",), (50,), (0, 1, 2), {"square": (0.01, 0.1, 1.0)})
>>> aucs = (0.7, 0.9, 0.8)
>>> tried = [
...     Record(trial, "finished", {}, validation_auc=auc)
...     for trial, auc in zip(screening(grid).trials(), aucs, strict=True)
... ]
>>> [(trial.cell.seed, trial.rate) for trial in finals(grid, tried, 1).trials()]
[(0, 0.1), (1, 0.1), (2, 0.1)]
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from everypair.experiments.plan import Grid, Record


def blocks(grid: Grid, *, per_batch: bool = False) -> list[Grid]:
    """Return a grid for each imratio, or for each imratio and batch size.

    Finalists are chosen in each block by itself, and one block is run after the other. If a run
    stops, most of its blocks are then complete.
    """
    sizes = [(batch,) for batch in grid.batches] if per_batch else [grid.batches]
    return [
        replace(grid, imratios=(imratio,), batches=batches)
        for imratio in grid.imratios
        for batches in sizes
    ]


def screening(grid: Grid) -> Grid:
    """Return the grid with its first seed only."""
    return replace(grid, seeds=grid.seeds[:1])


def finals(grid: Grid, records: Iterable[Record], n: int) -> Grid:
    """Return the grid with the best combinations of batch size and rate.

    For each imratio, loss and optimiser these are the `n` combinations with the greatest validation
    AUC on the first seed. Of equal AUCs, the one nearer to the middle of the grid is taken. Trials
    that failed do not take part; if all did, nothing is left to try.
    """
    found = {record.trial: record for record in records if record.state != "failed"}
    chosen = {}
    for cell in screening(grid).cells():
        tried = [found[trial] for trial in grid.trials_of(cell) if trial in found]
        middle = len(tried) // 2
        ranked = sorted((*_rank(one), abs(k - middle), k) for k, one in enumerate(tried))
        best = [tried[k].trial for k in sorted(k for *_, k in ranked[:n])]
        chosen[cell.imratio, cell.loss, cell.optimiser] = tuple(
            (trial.batch, trial.rate) for trial in best
        )
    return replace(grid, chosen=chosen)


def _rank(record: Record) -> tuple[bool, float]:
    """Return a key that sorts the greatest validation AUC first and NaN last."""
    auc = record.validation_auc
    return not math.isfinite(auc), -auc if math.isfinite(auc) else 0.0
