"""Run one trial of a contender: cross-validation, then a fit that is judged on the test part."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import everypair as ep
from everypair.experiments.contenders.parts import Fold, Parts, folds
from everypair.experiments.families import FAMILIES, Fit, Floats, Rows, fit_mean
from everypair.experiments.plan import Record, Trial

_ROC_POINTS = 200


class Scores(NamedTuple):
    """Held-out scores of a trial.

    `validation` holds the scores of the validation rows of each fold, one fold after another, and
    `test` those of the test rows by the model that was fitted on the whole training part.
    """

    validation: Floats
    test: Floats


def run(trial: Trial, parts: Parts) -> tuple[Record, Scores]:
    """Choose the last parameter of the family by cross-validation, refit and score the test part.

    The training part alone chooses; the test part is only scored.
    """
    begin = time.monotonic()
    family, train, test = FAMILIES[trial.cell.optimiser], parts.train, parts.test
    parameters, loss = dict(trial.parameters), trial.cell.loss
    divided = folds(train, trial.cell.seed)
    validation: list[list[Floats]] = []  # by fold and value of the path
    for fit_rows, held_out in divided:
        fitted = family.fit(Fit(train.take(fit_rows), loss, parameters, family.path))
        validation.append([scorer(train.X[held_out]) for scorer in fitted])
    paths = [np.concatenate(scores) for scores in zip(*validation, strict=True)]
    means = [mean_auc(scores, train, divided) for scores in paths]
    best = int(np.nanargmax(means)) if not all(map(math.isnan, means)) else 0
    chosen = family.path[best]
    scorer = fit_mean(family, Fit(train, loss, parameters, (chosen,)))
    test_scores = scorer(test.X)
    record = Record(
        trial,
        "finished",
        {},
        validation_auc=means[best],
        test_auc=auc(test_scores, test),
        roc=_roc(test_scores, test),
        seconds=time.monotonic() - begin,
        chosen={family.path_name: chosen},
    )
    return record, Scores(paths[best], test_scores)


def auc(scores: Floats, rows: Rows) -> float:
    """Return the AUC of scores, inside groups if there are groups; NaN without a pair."""
    try:
        return ep.auc(scores, rows.y, groups=rows.groups)
    except ValueError:
        return math.nan


def fold_aucs(scores: Floats, rows: Rows, divided: Sequence[Fold]) -> list[float]:
    """Return the AUC of each fold, from the validation scores of all folds one after another."""
    ends = np.cumsum([len(held_out) for _, held_out in divided])
    pieces = np.split(scores, ends[:-1])
    return [
        auc(piece, rows.take(held_out))
        for piece, (_, held_out) in zip(pieces, divided, strict=True)
    ]


def mean_auc(scores: Floats, rows: Rows, divided: Sequence[Fold]) -> float:
    """Return the mean AUC over the folds; folds without a pair do not count."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of nanmean, if there is no such fold
        return float(np.nanmean(fold_aucs(scores, rows, divided)))


def _roc(scores: Floats, rows: Rows) -> tuple[list[float], list[float]]:
    curve = ep.roc_curve(scores, rows.y)
    kept = np.unique(np.linspace(0, len(curve.fpr) - 1, _ROC_POINTS).round().astype(int))
    return curve.fpr[kept].tolist(), curve.tpr[kept].tolist()
