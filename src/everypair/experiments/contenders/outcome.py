"""Compare the contenders of an experiment on a table, and fit the winner on all rows.

The winner is that of `ranking.ranked`; the test part only judges.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median_low
from typing import Any

import numpy as np
from numpy.typing import NDArray

import everypair as ep
from everypair.experiments._atomic import replacing
from everypair.experiments.contenders import cross_validation, importance, parts, saved
from everypair.experiments.contenders.calibration import Calibration, blended, calibrate
from everypair.experiments.contenders.ranking import Contender, held_out_classes, ranked
from everypair.experiments.data.sources import Dataset
from everypair.experiments.families import FAMILIES, Fit, Floats, MeanScorer, Rows, fit_mean
from everypair.experiments.intervals import resampled_interval
from everypair.experiments.plan import Record

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
    ``difference``, its test AUC minus that of the winner, and the interval of this difference.
    ``importance`` holds the drop of the winner's test AUC when the values of a column are permuted.
    """
    able = [r for r in records if r.state == "finished" and math.isfinite(r.validation_auc)]
    if not able:
        return None
    path, target = folder / saved.FILE_NAME, folder / FOLDER / SUMMARY
    key = _key(able, skipped)
    if path.is_file() and target.is_file() and json.loads(target.read_text()).get("key") == key:
        return path
    seeds = sorted({record.trial.cell.seed for record in able})
    divided = [parts.parts_of(dataset, seed) for seed in seeds]
    contenders = ranked(folder, able, seeds, divided)
    winner, first = contenders[0], divided[0]
    judged = _judged(contenders, [part.test for part in divided])
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
    summary = {
        "key": key,
        "winner": {**facts, "parameters": [_parameters(member) for member in model.members]},
        "contenders": [{**one, "interval": one.pop("difference_interval")} for one in judged],
        "skipped": list(skipped),
        "importance": _importance(winner, first, threads),
        "seeds": seeds,
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


def _key(records: Sequence[Record], skipped: Sequence[str]) -> str:
    """Return a digest of the trials and their results."""
    plain = [[asdict(r.trial), r.validation_auc, r.test_auc] for r in records]
    text = json.dumps([plain, list(skipped)], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parameters(member: saved.Member) -> dict[str, Any]:
    return {"family": member.family, "loss": member.loss, **member.parameters}


def _importance(winner: Contender, part: parts.Parts, threads: int) -> list[dict[str, Any]]:
    """Return the importance of the columns for the winner, fitted on the training part alone."""
    fitted = [_fit(same[0], part.train, same[0].chosen, threads) for same in winner.members]

    def scorer(X: NDArray[np.float32]) -> Floats:
        return blended(winner.calibrations, winner.weights, [each(X) for each in fitted])

    return importance.importance(scorer, part.encoder, part.test)


def _judged(contenders: Sequence[Contender], tests: Sequence[Rows]) -> list[dict[str, Any]]:
    """Return the test AUC of every contender, with intervals; the first is the winner."""
    winner = contenders[0]
    aucs = [
        [cross_validation.auc(scores, rows) for scores, rows in zip(one.test, tests, strict=True)]
        for one in contenders
    ]
    judged = []
    for one, found in zip(contenders, aucs, strict=True):
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
