"""The linear models of real targets and of survival times."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import everypair as ep
from everypair.sklearn import PairLinearRanker, PairLinearSurvival


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 3)) * [1.0, 3.0, 0.2]
    target = np.round(X @ [1.0, -0.3, 2.0] + rng.normal(size=90))
    times, limits = rng.exponential(np.exp(-X[:, 0])), rng.exponential(2.0, 90)
    y = np.empty(90, [("event", bool), ("time", float)])
    y["event"], y["time"] = times < limits, np.minimum(times, limits)
    return X, target, y, rng.uniform(0.5, 2.0, 90), rng.integers(0, 3, 90)


def test_scores_are_concordance_indices(table):
    X, target, y, weights, groups = table
    model = PairLinearRanker().fit(X, target)
    options = {"weights": weights, "groups": groups}
    expected = ep.auc(X @ model.coef_, target, pairs="ordered", **options)
    assert model.score(X, target, weights, groups) == pytest.approx(expected)
    model = PairLinearSurvival().fit(X, y)
    expected = ep.auc(X @ model.coef_, y, pairs="survival")
    assert model.score(X, y) == pytest.approx(expected)
    assert expected > 0.7
    metrics = pytest.importorskip("sksurv.metrics")
    agreed = metrics.concordance_index_censored(y["event"], y["time"], model.predict(X))[0]
    assert agreed == pytest.approx(expected, rel=1e-12)


def test_forms_of_survival_targets(table):
    X, _, y, *_ = table
    expected = PairLinearSurvival().fit(X, y).coef_
    columns = np.column_stack([y["time"], y["event"]])
    signed = np.where(y["event"], y["time"], -y["time"])
    for form in (columns, signed, y[["time", "event"]], (y["time"], y["event"])):
        np.testing.assert_array_equal(PairLinearSurvival().fit(X, form).coef_, expected)


def test_searches(table):
    X, target, y, *_ = table
    pipe = make_pipeline(StandardScaler(), PairLinearRanker())
    search = GridSearchCV(pipe, {"pairlinearranker__alpha": [1e-4, 1.0]}, cv=3).fit(X, target)
    assert search.best_score_ > 0.7
    assert cross_val_score(PairLinearSurvival(), X, y, cv=3).mean() > 0.6


@pytest.mark.parametrize(
    ("model", "y", "message"),
    [
        (PairLinearRanker(), np.ones(5), "y, .* must leave a pair to compare"),
        (PairLinearSurvival(), -np.arange(1.0, 6.0), "y, .* must leave a pair to compare"),
        (PairLinearSurvival(censoring="none"), np.arange(1.0, 6.0), "censoring must be"),
        (PairLinearSurvival(), np.zeros(5, [("a", float), ("b", float)]), "one field of bools"),
        (PairLinearRanker(alpha=-1.0), np.arange(5.0), "alpha must be"),
    ],
)
def test_wrong_targets(model, y, message):
    with pytest.raises(ValueError, match=message):
        model.fit(np.eye(5), y)
