"""Compare the contenders of an experiment on a table, and fit the winner on all rows.

Every contender (a family with a loss) is represented by its parameters with the greatest mean
validation AUC. The blend of all contenders is one more: the mean of their log-odds, in which every
family has the same weight. It varies less than a single contender and needs no choice, so it wins
unless the contender with the greatest validation AUC is better by more than one standard error of
the difference (DeLong's, on the validation scores). Test rows take no part in these choices.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median_low
from typing import Any

import numpy as np
from numpy.typing import NDArray

import everypair as ep
from everypair.experiments._atomic import replacing
from everypair.experiments.contenders import cross_validation, importance, parts, saved
from everypair.experiments.contenders.calibration import Calibration, blended, calibrate
from everypair.experiments.contenders.cross_validation import Scores
from everypair.experiments.contenders.families import FAMILIES
from everypair.experiments.contenders.family import Fit, Floats, MeanScorer, Rows, fit_mean
from everypair.experiments.data.sources import Dataset
from everypair.experiments.display_names import display_name
from everypair.experiments.intervals import resampled_interval
from everypair.experiments.plan import Record, Trial

FOLDER, SUMMARY, TEST_SCORES = "winner", "summary.json", "test_scores.npz"
_SCORES = "scores"
_TEST_SHARE = 0.2 / 0.8  # test rows for each training row


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


def scores_path(folder: str | Path, trial: Trial) -> Path:
    """Return the file for the held-out scores of a trial."""
    cell = trial.cell
    name = f"{cell.optimiser} {cell.loss} {trial.name} seed={cell.seed}"
    return Path(folder) / _SCORES / f"{name.replace(' ', '-')}.npz"


def save_scores(folder: str | Path, trial: Trial, scores: Scores) -> None:
    """Write the held-out scores of a trial."""
    with replacing(scores_path(folder, trial)) as temporary:
        np.savez_compressed(temporary, **scores._asdict())


def conclude(
    folder: Path,
    dataset: Dataset,
    records: Iterable[Record],
    *,
    skipped: Sequence[str] = (),
    threads: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> Path | None:
    """Choose the winner, fit it on all rows, and write the model and the summary.

    Parameters
    ----------
    folder : Path
        The folder of the experiment; gets ``model.zip``, ``winner/summary.json`` and
        ``winner/test_scores.npz``. If they are there already and belong to the same records,
        nothing is done.
    dataset : Dataset
    records : iterable of Record
    skipped : sequence of str
        The families that were not tried, with the reasons.
    threads : int
        For the last fits.
    say : callable
        Called with a line for each step that takes time.

    Returns
    -------
    path : Path, optional
        The model; None if no trial is finished.

    Notes
    -----
    In ``summary.json``, ``winner`` and each of ``contenders`` have a name, a family, a loss,
    validation_auc and test_auc. The interval of the winner is that of its test AUC. A contender has
    ``difference``, its test AUC minus that of the winner, and the interval of this difference.
    ``importance`` holds the drop of the winner's test AUC when the values of a column are permuted.
    """
    able = [r for r in records if r.state == "finished" and math.isfinite(r.validation_auc)]
    if not able:
        return None
    plain = [[asdict(r.trial), r.validation_auc, r.test_auc] for r in able]
    key = hashlib.sha256(json.dumps([plain, list(skipped)], default=str).encode()).hexdigest()[:16]
    path, target = folder / saved.FILE_NAME, folder / FOLDER / SUMMARY
    if target.is_file() and path.is_file():
        summary: dict[str, Any] = json.loads(target.read_text())
        if summary.get("key") == key:
            return path
    say("Comparing the contenders")
    seeds = sorted({record.trial.cell.seed for record in able})
    divided = [parts.parts_of(dataset, seed) for seed in seeds]
    ranked = _ranked(folder, able, seeds, divided)
    winner = ranked[0]
    say(f"Fitting the winner on all rows: {winner.name}")
    judged = _judged(ranked, [part.test for part in divided])
    fitted = [
        _fit(records[0], divided[0].train, records[0].chosen, threads) for records in winner.members
    ]
    first = divided[0]
    drops = importance.importance(
        lambda X: blended(winner.calibrations, winner.weights, [scorer(X) for scorer in fitted]),
        first.encoder,
        first.test,
    )
    held_out_y = _held_out(first.train, seeds[0])
    calibration = calibrate(winner.held_out, held_out_y)
    facts = {
        **judged[0],
        "rows": len(dataset.positive),
        "positives": int(dataset.positive.sum()),
        "positive": dataset.positive_name,
    }
    model = _final(winner, dataset, calibration, facts, threads)
    _write_scores(folder, winner.test[0], first.test.y, calibration.probabilities(winner.test[0]))
    model.save(path)
    parameters = [
        {"family": member.family, "loss": member.loss, **member.parameters}
        for member in model.members
    ]
    facts = {name: value for name, value in facts.items() if name != "difference"}
    summary = {
        "key": key,
        "winner": {**facts, "parameters": parameters},
        "contenders": [{**one, "interval": one["difference_interval"]} for one in judged],
        "skipped": list(skipped),
        "importance": drops,
        "seeds": seeds,
    }
    with replacing(target) as temporary:
        temporary.write_text(json.dumps(summary, indent=1, default=float))
    return path


def _ranked(
    folder: Path, records: Sequence[Record], seeds: Sequence[int], divided: Sequence[parts.Parts]
) -> list[Contender]:
    """Return the contenders: the winner first, then by mean validation AUC."""
    found: dict[tuple[str, str], list[tuple[Record, ...]]] = {}
    by_trial = {
        (r.trial.cell.optimiser, r.trial.cell.loss, r.trial.parameters, r.trial.cell.seed): r
        for r in records
    }
    for family, loss, parameters, _ in by_trial:
        same = [by_trial.get((family, loss, parameters, seed)) for seed in seeds]
        if all(same) and same not in found.setdefault((family, loss), []):
            found[family, loss].append(tuple(r for r in same if r))
    best = [
        max(options, key=lambda same: fmean(r.validation_auc for r in same))
        for options in found.values()
        if options
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
        if not _is_better(leader, blend, divided[0].train, seeds[0]):
            leader = blend
    others = [one for one in contenders if one is not leader]
    return [leader, *sorted(others, key=lambda one: -fmean(one.validation))]


def _is_better(one: Contender, blend: Contender, train: Rows, seed: int) -> bool:
    """Return whether the validation AUC is greater than the blend's by over one standard error."""
    gap = fmean(one.validation) - fmean(blend.validation)
    if train.groups is not None:
        return gap > 0
    y = _held_out(train, seed)[: len(train)]  # each row once, if the folds are repeated
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
        scores = [_load(folder, records[place], part) for records in members]
        y = _held_out(part.train, seed)
        curves = tuple(calibrate(one.validation, y) for one in scores)
        mixed = [blended(curves, weights, s) for s in zip(*scores, strict=True)]
        held_out.append(mixed[0])
        test.append(mixed[1])
        calibrations.append(curves)
        folds = parts.folds(part.train, seed)
        validation.append(cross_validation.mean_auc(mixed[0], part.train, folds))
    first = held_out[0], calibrations[0]
    return Contender(members, tuple(validation), tuple(test), *first, weights)


def _load(folder: Path, record: Record, part: parts.Parts) -> Scores:
    """Read the held-out scores of a trial; compute them again if another machine has them."""
    try:
        with np.load(scores_path(folder, record.trial), allow_pickle=False) as arrays:
            return Scores(arrays["validation"], arrays["test"])
    except (OSError, ValueError, KeyError):
        _, scores = cross_validation.run(record.trial, part)
        save_scores(folder, record.trial, scores)
        return scores


def _held_out(train: Rows, seed: int) -> NDArray[np.bool_]:
    """Return the classes of the validation rows, fold after fold."""
    return np.concatenate([train.y[held_out] for _, held_out in parts.folds(train, seed)])


def _judged(ranked: Sequence[Contender], tests: Sequence[Rows]) -> list[dict[str, Any]]:
    """Return the test AUC of every contender, with intervals; the first is the winner."""
    winner = ranked[0]
    aucs = [
        [cross_validation.auc(scores, rows) for scores, rows in zip(one.test, tests, strict=True)]
        for one in ranked
    ]
    judged = []
    for one, found in zip(ranked, aucs, strict=True):
        gaps = [a - b for a, b in zip(found, aucs[0], strict=True)]
        interval: Any = resampled_interval(found, _TEST_SHARE)
        between: Any = resampled_interval(gaps, _TEST_SHARE)
        if len(tests) == 1 and tests[0].groups is None:
            interval, between = _delong(one.test[0], winner.test[0], tests[0])
        judged.append(
            {
                "name": one.name,
                "family": one.family,
                "loss": one.loss,
                "validation_auc": fmean(one.validation),
                "test_auc": fmean(found),
                "interval": interval,
                "difference": fmean(gaps),
                "difference_interval": None if one is winner else between,
            }
        )
    return judged


def _delong(ours: Floats, winner: Floats, rows: Rows) -> tuple[Any, Any]:
    """Return DeLong's intervals of an AUC, and of its difference from the winner's."""
    try:
        alone, gap = ep.delong(ours, rows.y), ep.delong_test(ours, winner, rows.y)
    except ValueError:  # fewer than two rows of a class
        return None, None
    return (alone.low, alone.high), (gap.low, gap.high)


def _fit(record: Record, rows: Rows, chosen: dict[str, float], threads: int) -> MeanScorer:
    trial = record.trial
    family = FAMILIES[trial.cell.optimiser]
    path = (chosen[family.path_name],)
    fit = Fit(rows, trial.cell.loss, dict(trial.parameters), path, threads=threads)
    return fit_mean(family, fit)


def _final(
    winner: Contender, dataset: Dataset, calibration: Calibration, facts: Any, threads: int
) -> saved.TableModel:
    """Fit the winner on all rows."""
    encoder, rows = parts.all_rows(dataset)
    members = []
    every = zip(winner.members, winner.calibrations, winner.weights, strict=True)
    for records, curve, weight in every:
        cell = records[0].trial.cell
        # Seeds may have chosen different values of the last parameter: use the middle one.
        chosen = {n: median_low([r.chosen[n] for r in records]) for n in records[0].chosen}
        scorer = _fit(records[0], rows, chosen, threads)
        parameters = {**dict(records[0].trial.parameters), **chosen}
        members.append(saved.Member(cell.optimiser, cell.loss, parameters, curve, scorer, weight))
    return saved.TableModel(encoder, members, calibration, facts)


def _write_scores(folder: Path, scores: Floats, labels: Any, probabilities: Floats) -> None:
    with replacing(folder / FOLDER / TEST_SCORES) as temporary:
        np.savez_compressed(
            temporary, scores=scores, labels=labels.astype(np.int8), probabilities=probabilities
        )
