"""Run one trial of a contender: cross-validation, then a fit that is judged on the test part."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    validation_auc = mean_auc(train, divided)
    validation: list[list[Floats]] = []  # by fold and value of the path
    for fit_rows, held_out in divided:
        fitted = family.fit(Fit(train.take(fit_rows), loss, parameters, family.path))
        validation.append([scorer(train.X[held_out]) for scorer in fitted])
    paths = [np.concatenate(scores) for scores in zip(*validation, strict=True)]
    means = [validation_auc(scores) for scores in paths]
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
    return _auc(scores, rows.y, rows.groups)


def mean_auc(rows: Rows, divided: Sequence[Fold]) -> Callable[[Floats], float]:
    """Return a function that computes the mean AUC over the folds.

    It takes the validation scores of all folds, one fold after another. Folds without a pair do not
    count; if there is no other fold, the mean is NaN.
    """
    held_out = [fold for _, fold in divided]
    ends = np.cumsum([len(fold) for fold in held_out])[:-1]
    labels = [rows.y[fold] for fold in held_out]
    groups = [None if rows.groups is None else rows.groups[fold] for fold in held_out]

    def mean(scores: Floats) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of nanmean, if all are NaN
            return float(np.nanmean(list(map(_auc, np.split(scores, ends), labels, groups))))

    return mean


def _auc(scores: Floats, labels: NDArray[np.bool_], groups: NDArray[np.int64] | None) -> float:
    try:
        return ep.auc(scores, labels, groups=groups)
    except ValueError:
        return math.nan


def _roc(scores: Floats, rows: Rows) -> tuple[list[float], list[float]]:
    curve = ep.roc_curve(scores, rows.y)
    kept = np.unique(np.linspace(0, len(curve.fpr) - 1, _ROC_POINTS).round().astype(int))
    return curve.fpr[kept].tolist(), curve.tpr[kept].tolist()
