"""Smooth average precision as an objective: its gradient, its Hessian, and training with it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import everypair as ep
from everypair.boosting import (
    catboost_average_precision_objective,
    lightgbm_average_precision_objective,
    xgboost_average_precision_objective,
)

from .test_libraries import CATBOOST, LIGHTGBM, XGBOOST, table  # noqa: F401

ROUNDS = 20


def loss(scores, labels, weights, groups, temperature):
    """Return the loss of the docstring by direct sums, in float64."""
    total = 0.0
    for group in np.unique(groups):
        s, y, w = (a[groups == group] for a in (scores, labels > 0, weights))
        s, y, w = s[w > 0], y[w > 0], w[w > 0]
        if not y.any():
            continue
        precisions = []
        for i in np.flatnonzero(y):
            above = w / (1 + np.exp((s[i] - s) / temperature))
            above[i] = w[i]
            precisions.append(above[y].sum() / above.sum())
        total += 2 * temperature * w.sum() * (1 - np.average(precisions, weights=w[y]))
    return total


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    labels = (rng.random(40) < 0.3).astype(np.float64)
    scores = rng.normal(size=40) + labels
    scores[::4] = scores[::4].round()
    weights = rng.uniform(0.5, 2.0, 40)
    weights[::7] = 0.0
    return scores, labels, weights


@pytest.mark.parametrize("temperature", [0.5, 2.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sizes", [None, [10, 25, 5]])
def test_the_gradient_is_that_of_finite_differences(rows, temperature, weighted, sizes):
    scores, labels, weights = rows
    labels[35:] = 0  # the last group has no positive
    weights = weights if weighted else np.ones(40)
    groups = np.zeros(40) if sizes is None else np.repeat(np.arange(3), sizes)
    objective = lightgbm_average_precision_objective(temperature=temperature)
    grad, hess = objective(labels, scores, weights if weighted else None, sizes)
    step, expected = 1e-5, np.zeros(40)
    for i in range(40):
        moved = [scores + sign * step * (np.arange(40) == i) for sign in (1, -1)]
        values = [loss(s, labels, weights, groups, temperature) for s in moved]
        expected[i] = (values[0] - values[1]) / (2 * step)
    np.testing.assert_allclose(grad, expected, atol=2e-6 * np.abs(expected).max() + 1e-8)
    assert (hess[(weights > 0) & (groups < 2)] > 0).all()
    assert not hess[weights == 0].any()


def test_at_equal_scores_gradients_are_those_of_the_logistic_loss():
    labels = np.repeat([1.0, 0.0], [2000, 8000])
    for temperature in (0.1, 3.0):
        objective = xgboost_average_precision_objective(temperature=temperature)
        grad, hess = objective(labels, np.full(10_000, 2.0))
        np.testing.assert_allclose(grad, 0.2 - labels, rtol=1e-3)
        np.testing.assert_allclose(hess, 0.16, rtol=1e-5)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_has_no_derivatives(label):
    grad, hess = lightgbm_average_precision_objective()(np.full(3, label), np.arange(3.0))
    assert not grad.any()
    assert not hess.any()


def test_objectives_are_checked_shown_and_pickled():
    with pytest.raises(ValueError, match="temperature must be above 0"):
        xgboost_average_precision_objective(temperature=-1.0)
    with pytest.raises(ValueError, match="labels must hold two classes"):
        lightgbm_average_precision_objective()(np.zeros(2), np.zeros((2, 3)))
    objective = pickle.loads(pickle.dumps(lightgbm_average_precision_objective(temperature=0.5)))
    assert repr(objective) == "lightgbm_average_precision_objective(temperature=0.5)"


def assert_learns(scores, y):
    assert ep.average_precision(scores, y) > 0.8


def test_lightgbm(table):  # noqa: F811
    lgb = pytest.importorskip("lightgbm")
    X, y, _ = table
    params = {**LIGHTGBM, "objective": lightgbm_average_precision_objective(), "metric": "None"}
    booster = lgb.train(params, lgb.Dataset(X, y), ROUNDS)
    assert_learns(booster.predict(X, raw_score=True), y)


def test_xgboost(table):  # noqa: F811
    xgb = pytest.importorskip("xgboost")
    X, y, _ = table
    objective = xgboost_average_precision_objective()
    booster = xgb.train(XGBOOST, xgb.DMatrix(X, y), ROUNDS, obj=objective)
    assert_learns(booster.predict(xgb.DMatrix(X), output_margin=True), y)


@pytest.mark.filterwarnings("ignore:Failed to import numba", "ignore:Can't optim")
def test_catboost(table):  # noqa: F811
    catboost = pytest.importorskip("catboost")
    X, y, w = table
    objective = catboost_average_precision_objective(y, weights=w)
    model = catboost.CatBoost({**CATBOOST, **objective.params, "iterations": ROUNDS})
    model.fit(X, y, sample_weight=w)
    assert_learns(model.predict(X, prediction_type="RawFormulaVal"), y)
