"""Compare the contenders of an experiment on a table, and fit the winner on all rows.

The winner is that of `ranking.ranked`; the test part only judges.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median_low
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.experiments._atomic import replacing
from everypair.experiments.contenders import cross_validation, importance, parts, saved
from everypair.experiments.contenders.calibration import Calibration, blended, calibrate
from everypair.experiments.contenders.ranking import Contender, held_out_classes, ranked
from everypair.experiments.data.sources import Dataset
from everypair.experiments.families import FAMILIES, Fit, Floats, MeanScorer, Rows, fit_mean
from everypair.experiments.intervals import placements, resampled_interval, same_rows_interval
from everypair.experiments.plan import Record
from everypair.experiments.seen_rows import SeenRows

FOLDER, SUMMARY, TEST_SCORES = "winner", "summary.json", "test_scores.npz"
_TEST_SHARE = 0.2 / 0.8  # test rows for each training row


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
    ``difference``, its test AUC minus that of the winner, the interval of this difference, and
    ``weight``, its share in the winner if that is a blend.
    ``intervals`` says what the intervals cover: the test rows, or the splits of several seeds.
    ``importance`` holds the drop of the winner's test AUC when the values of a column are permuted.
    """
    able = [r for r in records if r.state == "finished" and math.isfinite(r.validation_auc)]
    if not able:
        return None
    path, target = folder / saved.FILE_NAME, folder / FOLDER / SUMMARY
    key = _key(able, skipped)
    with suppress(AttributeError, OSError, ValueError):  # missing or damaged
        if path.is_file() and json.loads(target.read_text()).get("key") == key:
            return path
    say("Comparing the models")
    seeds = sorted({record.trial.cell.seed for record in able})
    divided = [parts.parts_of(dataset, seed) for seed in seeds]
    contenders = ranked(folder, able, seeds, divided)
    winner, first = contenders[0], divided[0]
    tests = [part.test for part in divided]
    same_rows = len(seeds) == 1 or dataset.test_positive is not None
    over_rows = same_rows and tests[0].groups is None
    judged = _judged(contenders, tests, over_rows=over_rows)
    say(f"Fitting the winner on all rows: {winner.name}")
    calibration = calibrate(winner.held_out, held_out_classes(first.train, seeds[0]))
    facts = {
        **{name: judged[0][name] for name in ("name", "family", "loss", "validation_auc")},
        **{name: judged[0][name] for name in ("test_auc", "interval")},
        "rows": len(dataset.positive),
        "positives": int(dataset.positive.sum()),
        "positive": dataset.positive_name,
    }
    model = _final(winner, dataset, calibration, facts, threads)
    say("Measuring which columns matter")
    summary = {
        "key": key,
        "winner": {**facts, "parameters": [_parameters(member) for member in model.members]},
        "contenders": [{**one, "interval": one.pop("difference_interval")} for one in judged],
        "skipped": list(skipped),
        "importance": _importance(winner, first, threads),
        "seeds": seeds,
        "intervals": _coverage(len(seeds), over_rows=over_rows),
    }
    with replacing(folder / FOLDER / TEST_SCORES) as temporary:
        np.savez_compressed(
            temporary,
            scores=winner.test[0],
            labels=first.test.y.astype(np.int8),
            probabilities=calibration.probabilities(winner.test[0]),
        )
    model.save(path)
    with replacing(target) as temporary:
        temporary.write_text(json.dumps(summary, indent=1, default=float))
    return path


def _coverage(n_seeds: int, *, over_rows: bool) -> str:
    """Return what the intervals cover, as part of a sentence; empty if there are none."""
    if over_rows:
        folds = f", and of the folds by {n_seeds} seeds" if n_seeds > 1 else ""
        return f"the choice of the test rows (DeLong){folds}"
    if n_seeds == 1:
        return ""
    return f"the choice of the split by {n_seeds} seeds, whose rows overlap (Nadeau and Bengio)"


def _key(records: Sequence[Record], skipped: Sequence[str]) -> str:
    """Return a digest of the trials and their results."""
    plain = [[asdict(r.trial), r.validation_auc, r.test_auc] for r in records]
    text = json.dumps([plain, list(skipped)], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parameters(member: saved.Member) -> dict[str, Any]:
    weight = {"weight": member.weight} if member.weight < 1 else {}
    return {"family": member.family, "loss": member.loss, **weight, **member.parameters}


def _importance(winner: Contender, part: parts.Parts, threads: int) -> list[dict[str, Any]]:
    """Return the importance of the columns for the winner, fitted on the training part alone."""
    fitted = [_fit(same[0], part.train, same[0].chosen, threads) for same in winner.members]

    def scorer(X: NDArray[np.float32]) -> Floats:
        return blended(winner.calibrations, winner.weights, [each(X) for each in fitted])

    return importance.importance(scorer, part.encoder, part.test)


def _judged(
    contenders: Sequence[Contender], tests: Sequence[Rows], *, over_rows: bool
) -> list[dict[str, Any]]:
    """Return the test AUC of every contender, with intervals; the first is the winner.

    `over_rows` says that the test rows of all seeds are the same, so that the intervals are those
    of `same_rows_interval`.
    """
    winner = contenders[0]
    aucs = [
        [cross_validation.auc(scores, rows) for scores, rows in zip(one.test, tests, strict=True)]
        for one in contenders
    ]
    judged = []
    for one, found in zip(contenders, aucs, strict=True):
        gaps = [a - b for a, b in zip(found, aucs[0], strict=True)]
        if over_rows:
            interval, between = _over_rows(one, winner, tests[0])
        else:
            interval = resampled_interval(found, _TEST_SHARE)
            between = resampled_interval(gaps, _TEST_SHARE)
        judged.append(
            {
                "name": one.name,
                "family": one.family,
                "loss": one.loss,
                "weight": winner.share(one),
                "validation_auc": fmean(one.validation),
                "test_auc": fmean(found),
                "interval": interval,
                "difference": fmean(gaps),
                "difference_interval": None if one is winner else between,
            }
        )
    return judged


def _over_rows(one: Contender, winner: Contender, rows: Rows) -> tuple[Any, Any]:
    """Return the intervals of a mean AUC, and of its difference from the winner's."""
    ours, best = ([placements(s, rows.y) for s in found.test] for found in (one, winner))
    pairs = zip(ours, best, strict=True)
    gaps = [(a[0] - b[0], a[1] - b[1]) for a, b in pairs]
    alone = same_rows_interval(ours)
    inside = alone and (max(alone[0], 0.0), min(alone[1], 1.0))
    return inside, same_rows_interval(gaps)


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
    return saved.TableModel(encoder, members, calibration, facts, SeenRows.of(rows.X))
