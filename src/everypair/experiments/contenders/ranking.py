"""Rank the contenders of a table by their validation AUC, and blend them.

Every contender (a family with a loss) is represented by its parameters with the greatest mean
validation AUC. The blend of all contenders is one more: the mean of their log-odds, in which every
family has the same weight. It varies less than a single contender and needs no choice, so it wins
unless the contender with the greatest validation AUC is better by more than one standard error of
the difference (DeLong's, on the validation scores). Test rows take no part in these choices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

import everypair as ep
from everypair.experiments._atomic import replacing
from everypair.experiments.contenders import cross_validation, parts
from everypair.experiments.contenders.calibration import Calibration, blended, calibrate
from everypair.experiments.contenders.cross_validation import Scores
from everypair.experiments.display_names import display_name
from everypair.experiments.families import FAMILIES, Floats, Rows
from everypair.experiments.plan import Record, Trial

_SCORES = "scores"


@dataclass(frozen=True)
class Contender:
    """A family with a loss and its best parameters, or a blend of several of them.

    Parameters
    ----------
    members : tuple of tuple of Record
        For each member, its record of every seed. A single contender has one member.
    validation, test : tuple of float and of array
        Mean validation AUC and test scores, for every seed.
    held_out : array
        Validation scores of the first seed, fold after fold.
    calibrations : tuple of Calibration
        Of the members, by their validation scores of the first seed.
    weights : tuple of float
        Of the members.
    """

    members: tuple[tuple[Record, ...], ...]
    validation: tuple[float, ...]
    test: tuple[Floats, ...]
    held_out: Floats
    calibrations: tuple[Calibration, ...]
    weights: tuple[float, ...] = (1.0,)

    @property
    def family(self) -> str:
        """Return the name of the family, or "blend"."""
        return "blend" if len(self.members) > 1 else self.members[0][0].trial.cell.optimiser

    @property
    def loss(self) -> str:
        """Return the name of the loss, or the names of all losses in a blend."""
        losses = dict.fromkeys(records[0].trial.cell.loss for records in self.members)
        return " + ".join(losses)

    @property
    def name(self) -> str:
        """Return the name for reports."""
        if len(self.members) == 1:
            return _called(self.members[0])
        families = dict.fromkeys(records[0].trial.cell.optimiser for records in self.members)
        return f"blend of {' and '.join(map(display_name, families))}"


def _called(records: Sequence[Record]) -> str:
    cell = records[0].trial.cell
    return f"{display_name(cell.optimiser)} {display_name(cell.loss)}"


def ranked(
    folder: Path, records: Sequence[Record], seeds: Sequence[int], divided: Sequence[parts.Parts]
) -> list[Contender]:
    """Return the contenders: the winner first, then by mean validation AUC."""
    found: dict[tuple[str, str], list[tuple[Record, ...]]] = {}
    by_seed: dict[Trial, dict[int, Record]] = {}
    for record in records:
        cell = record.trial.cell
        configuration = replace(record.trial, cell=replace(cell, seed=-1))
        by_seed.setdefault(configuration, {})[cell.seed] = record
    for trial, alike in by_seed.items():
        if len(alike) == len(seeds):
            key = trial.cell.optimiser, trial.cell.loss
            found.setdefault(key, []).append(tuple(alike[seed] for seed in seeds))
    best = [
        max(options, key=lambda same: fmean(r.validation_auc for r in same))
        for options in found.values()
    ]
    order = list(FAMILIES)
    best.sort(key=lambda same: order.index(same[0].trial.cell.optimiser))
    contenders = [_contender(folder, (same,), seeds, divided) for same in best]
    families = [one.family for one in contenders]
    leader = max(contenders, key=lambda one: fmean(one.validation))
    if len(set(families)) > 1:
        weights = tuple(1 / families.count(family) for family in families)
        blend = _contender(folder, tuple(best), seeds, divided, weights)
        contenders.append(blend)
        if not is_better(leader, blend, divided[0].train, seeds[0]):
            leader = blend
    others = [one for one in contenders if one is not leader]
    return [leader, *sorted(others, key=lambda one: -fmean(one.validation))]


def is_better(one: Contender, blend: Contender, train: Rows, seed: int) -> bool:
    """Return whether the validation AUC is greater than the blend's by over one standard error."""
    gap = fmean(one.validation) - fmean(blend.validation)
    if train.groups is not None:
        return gap > 0
    y = held_out_classes(train, seed)[: len(train)]  # each row once, if the folds are repeated
    try:
        both = ep.delong_test(one.held_out[: len(y)], blend.held_out[: len(y)], y)
    except ValueError:  # fewer than two rows of a class
        return gap > 0
    return gap > math.sqrt(both.variance)


def _contender(
    folder: Path,
    members: tuple[tuple[Record, ...], ...],
    seeds: Sequence[int],
    divided: Sequence[parts.Parts],
    weights: tuple[float, ...] = (1.0,),
) -> Contender:
    validation, test, held_out, calibrations = [], [], [], []
    for place, (seed, part) in enumerate(zip(seeds, divided, strict=True)):
        scores = [load_scores(folder, records[place], part) for records in members]
        y = held_out_classes(part.train, seed)
        curves = tuple(calibrate(one.validation, y) for one in scores)
        mixed = [blended(curves, weights, s) for s in zip(*scores, strict=True)]
        held_out.append(mixed[0])
        test.append(mixed[1])
        calibrations.append(curves)
        folds = parts.folds(part.train, seed)
        validation.append(cross_validation.mean_auc(mixed[0], part.train, folds))
    first = held_out[0], calibrations[0]
    return Contender(members, tuple(validation), tuple(test), *first, weights)


def held_out_classes(train: Rows, seed: int) -> NDArray[np.bool_]:
    """Return the classes of the validation rows, fold after fold."""
    return np.concatenate([train.y[held_out] for _, held_out in parts.folds(train, seed)])


def scores_path(folder: str | Path, trial: Trial) -> Path:
    """Return the file for the held-out scores of a trial."""
    cell = trial.cell
    name = f"{cell.optimiser} {cell.loss} {trial.name} seed={cell.seed}"
    return Path(folder) / _SCORES / f"{name.replace(' ', '-')}.npz"


def save_scores(folder: str | Path, trial: Trial, scores: Scores) -> None:
    """Write the held-out scores of a trial."""
    with replacing(scores_path(folder, trial)) as temporary:
        np.savez_compressed(temporary, **scores._asdict())


def load_scores(folder: Path, record: Record, part: parts.Parts) -> Scores:
    """Read the held-out scores of a trial; compute them again if another machine has them."""
    try:
        with np.load(scores_path(folder, record.trial), allow_pickle=False) as arrays:
            return Scores(arrays["validation"], arrays["test"])
    except (OSError, ValueError, KeyError):
        _, scores = cross_validation.run(record.trial, part)
        save_scores(folder, record.trial, scores)
        return scores
