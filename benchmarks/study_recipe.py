"""The table of the recipe for images: what stratified batches, momentum and warm starts change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from benchmarks.open_questions_report import chosen, gap
from benchmarks.study import PARTS, RECIPE_PART, Part, counted, read_rows
from everypair.experiments.display_names import display_name
from everypair.experiments.plan import Record

PLAIN, RECIPE, WARM = ("cifar10-raw", "cifar10"), "cifar10-recipe", "cifar10-recipe-warm"
HEAD = ("loss", "plain", "recipe", "minus plain", "warm start, {n} seeds", "minus recipe")
IMRATIO, BATCH = RECIPE_PART.imratios[0], RECIPE_PART.batches[0]


def section(folder: Path) -> str:
    """Return the table of test AUCs with and without the recipe, from rows of a folder.

    A warm start counts on the seeds that are complete for all its losses.
    """
    plain: dict[str, Mapping[int, Record]] = {}
    for name in PLAIN:  # the first has raw scores, like the recipe
        plain = {**_of_losses(folder, name), **plain}
    recipe, warm = _of_losses(folder, RECIPE), _of_losses(folder, WARM)
    n_seeds = min(map(len, warm.values()), default=0)
    heads = [head.format(n=n_seeds) for head in HEAD]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(HEAD) + "|"]
    for loss, seeds in recipe.items():
        cells = [
            display_name(loss),
            _mean(plain.get(loss)),
            _mean(seeds),
            _difference(seeds, plain.get(loss)),
            _mean(warm.get(loss)),
            _difference(warm.get(loss), seeds),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _complete(path: Path, part: Part) -> Part:
    """Return a part with only the first seeds, those that all its losses have finished."""
    if not path.is_file():
        return part
    records = read_rows(path)[1]
    for n in range(len(part.seeds), 1, -1):
        fewer = replace(part, seeds=part.seeds[:n])
        if len({record.trial.cell.loss for record in counted(fewer, records)}) == len(part.losses):
            return fewer
    return part


def _of_losses(folder: Path, name: str) -> dict[str, Mapping[int, Record]]:
    path = folder / f"{name}.jsonl"
    found = chosen(path, _complete(path, PARTS[name]))
    return {
        loss: seeds
        for (imratio, batch, loss), seeds in found.items()
        if (imratio, batch) == (IMRATIO, BATCH)
    }


def _mean(seeds: Mapping[int, Record] | None) -> str:
    return f"{fmean(r.test_auc for r in seeds.values()):.3f}" if seeds else ""


def _difference(ours: Mapping[int, Record] | None, theirs: Mapping[int, Record] | None) -> str:
    if not ours or not theirs:
        return ""
    mean, low, high = gap(ours, theirs)
    return f"{mean:+.3f} ({low:.3f} to {high:.3f})"
