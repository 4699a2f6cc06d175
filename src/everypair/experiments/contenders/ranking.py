"""Rank the contenders of a table by their validation AUC, and blend them.

Every contender (a family with a loss) is represented by its parameters with the greatest mean
validation AUC. If there are several families, a blend of all trials is one more contender, and it
wins: the weighted mean of their log-odds, with the weights of `blend_weights`. Of one family, the
contender with the greatest validation AUC wins. Test rows take no part in these choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from everypair.experiments._atomic import replacing
from everypair.experiments.contenders import cross_validation, parts
from everypair.experiments.contenders.blend import blend_weights
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
        Of the members; their sum is 1.
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

    def share(self, other: Contender) -> float | None:
        """Return the weight of another contender in this blend; None if this is no blend."""
        if len(self.members) == 1 or other.family == "blend":
            return None
        return sum(
            weight
            for records, weight in zip(self.members, self.weights, strict=True)
            if _called(records) == other.name
        )

    @property
    def name(self) -> str:
        """Return the name for reports."""
        if len(self.members) == 1:
            return _called(self.members[0])
        families = dict.fromkeys(records[0].trial.cell.optimiser for records in self.members)
        *others, last = map(display_name, families)
        if not others:
            return f"blend of {last} models"
        return f"blend of {', '.join(others)} and {last}"


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
    contenders = [_contender(folder, (same,), seeds, divided) for same in best]
    contenders.sort(key=lambda one: -fmean(one.validation))
    if len({family for family, _ in found}) == 1:
        return contenders
    every = [same for options in found.values() for same in options]
    order = list(FAMILIES)
    every.sort(key=lambda same: order.index(same[0].trial.cell.optimiser))
    blend = _blend(folder, every, seeds, divided)
    return [blend, *contenders] if len(blend.members) > 1 else contenders


def _blend(
    folder: Path,
    trials: Sequence[tuple[Record, ...]],
    seeds: Sequence[int],
    divided: Sequence[parts.Parts],
) -> Contender:
    """Return the blend of trials; its weights are the mean of those that each seed chooses."""
    chosen = []
    for place, (seed, part) in enumerate(zip(seeds, divided, strict=True)):
        y = held_out_classes(part.train, seed)
        scores = [load_scores(folder, same[place], part).validation for same in trials]
        odds = np.stack([calibrate(one, y).log_odds(one) for one in scores])
        auc = cross_validation.mean_auc(part.train, parts.folds(part.train, seed))
        chosen.append(blend_weights(odds, auc))
    weights = np.mean(chosen, axis=0)
    kept = np.flatnonzero(weights).tolist()
    members = tuple(trials[i] for i in kept)
    return _contender(folder, members, seeds, divided, tuple(weights[kept].tolist()))


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
        auc = cross_validation.mean_auc(part.train, parts.folds(part.train, seed))
        validation.append(auc(mixed[0]))
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
