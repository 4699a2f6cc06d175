"""Training with each library, through both of its interfaces."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import everypair as ep
from everypair.boosting import (
    catboost_objective,
    lightgbm_metric,
    lightgbm_objective,
    xgboost_metric,
    xgboost_objective,
)

lgb = pytest.importorskip("lightgbm")
xgb = pytest.importorskip("xgboost")
catboost = pytest.importorskip("catboost")

pytestmark = pytest.mark.filterwarnings(
    # CatBoost recommends packages that would speed up its Python calls.
    "ignore:Failed to import numba",
    "ignore:Can't optim",
    "ignore:The argument 'eval_set'",  # older versions of LightGBM know no other
)
ROUNDS = 20
LIGHTGBM = {"lambda_l2": 1.0, "min_sum_hessian_in_leaf": 1.0, "num_threads": 1, "verbose": -1}
LIGHTGBM["deterministic"] = True
LIGHTGBM_ESTIMATOR = {"n_estimators": ROUNDS, "reg_lambda": 1.0, "min_child_weight": 1.0}
LIGHTGBM_ESTIMATOR |= {"n_jobs": 1, "deterministic": True, "verbose": -1}
XGBOOST = {"nthread": 1, "base_score": 0.0, "learning_rate": 0.1}
CATBOOST = {"iterations": ROUNDS, "learning_rate": 0.3, "thread_count": 2, "verbose": False}
CATBOOST["allow_writing_files"] = False


@pytest.fixture(scope="module")
def table():
    """Return rows, their labels for each kind of pairs, and weights."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 4))
    risk = X[:, 0] + X[:, 1] * X[:, 2]
    times, censored = np.exp(-risk) * rng.exponential(size=1500), rng.exponential(2.0, 1500)
    target = (risk + 0.5 * rng.normal(size=1500)).astype(np.float32)
    signed = np.where(times < censored, times, -censored).astype(np.float32)
    labels = {"binary": (target > 1.5).astype(int), "ordered": target, "survival": signed}
    return X, labels, rng.integers(1, 4, 1500).astype(np.float64)


def train_lightgbm(X, y, w=None, pairs="binary", **groups):
    rows, seen = lgb.Dataset(X, y, weight=w, **groups), {}
    booster = lgb.train(
        {**LIGHTGBM, "objective": lightgbm_objective(pairs=pairs), "metric": "None"}, rows, ROUNDS,
        valid_sets=[rows], callbacks=[lgb.record_evaluation(seen)],
        feval=[lightgbm_metric(pairs=pairs), lightgbm_metric("loss", pairs=pairs)],
    )  # fmt: skip
    assert np.all(np.diff(seen["training"]["loss_pairs"]) < 0.0)
    return booster.predict(X, raw_score=True), seen["training"]["auc_pairs"][-1]


def train_xgboost(X, y, w=None, pairs="binary", **groups):
    rows, seen = xgb.DMatrix(X, y, weight=w, **groups), {}
    booster = xgb.train(
        XGBOOST, rows, ROUNDS, obj=xgboost_objective(pairs=pairs), evals=[(rows, "train")],
        custom_metric=xgboost_metric(pairs=pairs), evals_result=seen, verbose_eval=False,
    )  # fmt: skip
    return booster.predict(rows, output_margin=True), seen["train"]["auc_pairs"][-1]


def train_catboost(X, y, w=None, pairs="binary"):
    objective = catboost_objective(y, weights=w, pairs=pairs)
    model = catboost.CatBoost({**CATBOOST, **objective.params}).fit(X, y, sample_weight=w)
    scores = model.predict(X)
    # The metric saw the scores of the whole table, in its order, after the last round.
    expected = np.column_stack(xgboost_objective(pairs=pairs)(y, scores, w))
    found = objective.calc_ders_range(
        scores[300:700], y[300:700], None if w is None else w[300:700]
    )
    np.testing.assert_allclose(found, -expected[300:700], rtol=1e-4, atol=1e-6)
    return scores, model.evals_result_["learn"]["CatboostMetric"][-1]


@pytest.mark.parametrize("pairs", ["binary", "ordered", "survival"])
@pytest.mark.parametrize("train", [train_lightgbm, train_xgboost, train_catboost])
def test_training_orders_the_rows_and_the_metric_says_how_well(table, train, pairs):
    X, labels, w = table
    w = w if pairs == "binary" else None
    scores, seen = train(X, labels[pairs], w, pairs)
    expected = ep.auc(scores, labels[pairs], weights=w, pairs=pairs)
    assert seen == pytest.approx(expected, abs=1e-5)
    assert expected > (0.9 if pairs == "binary" else 0.75)


def test_estimators_of_lightgbm_give_the_same_scores(table):
    X, labels, w = table
    y, sizes = labels["binary"], [600, 300, 600]
    words = np.where(y == 1, "yes", "no")
    options = {"objective": lightgbm_objective(), **LIGHTGBM_ESTIMATOR}
    model = lgb.LGBMClassifier(**options)
    model.fit(X, words, sample_weight=w, eval_set=[(X, words)], eval_metric=lightgbm_metric())
    (seen,) = model.evals_result_.values()
    scores = pickle.loads(pickle.dumps(copy.deepcopy(model))).predict(X, raw_score=True)
    np.testing.assert_allclose(scores, train_lightgbm(X, y, w)[0], rtol=1e-6)
    assert seen["auc_pairs"][-1] == pytest.approx(ep.auc(scores, y, weights=w))
    ranker = lgb.LGBMRanker(**options).fit(X, y, group=sizes)
    scores = train_lightgbm(X, y, group=sizes)[0]
    np.testing.assert_allclose(ranker.predict(X, raw_score=True), scores, rtol=1e-6)
    assert not np.allclose(scores, train_lightgbm(X, y)[0])


def test_the_classifier_of_xgboost_gives_the_same_scores(table):
    X, labels, w = table
    y = labels["binary"]
    options = {"n_estimators": ROUNDS, "n_jobs": 1, "base_score": 0.5, "learning_rate": 0.1}
    options |= {"objective": xgboost_objective(), "eval_metric": xgboost_metric()}
    model = xgb.XGBClassifier(**options)
    model.fit(X, y, sample_weight=w, eval_set=[(X, y)], verbose=False)
    scores = model.predict(X, output_margin=True)
    np.testing.assert_allclose(scores, train_xgboost(X, y, w)[0], rtol=1e-5)
    seen = model.evals_result()["validation_0"]["auc_pairs"][-1]
    assert seen == pytest.approx(ep.auc(scores, y), abs=1e-6)


def test_a_query_of_xgboost_and_its_weight(table):
    X, labels, _ = table
    y, sizes, of_queries = labels["binary"], [600, 300, 600], [1.0, 2.0, 0.5]
    rows = xgb.DMatrix(X, y, qid=np.repeat([3, 5, 9], sizes), weight=of_queries)
    scores = np.random.default_rng(0).normal(size=1500).astype(np.float32)
    weights = np.repeat(of_queries, sizes)
    expected = lightgbm_objective(hessian="pairs")(y, scores, weights, sizes)
    np.testing.assert_allclose(xgboost_objective()(scores, rows), expected, rtol=1e-10)
    groups = np.repeat([0, 1, 2], sizes)
    scores, seen = train_xgboost(X, labels["ordered"], pairs="ordered", qid=groups)
    expected = ep.auc(scores, labels["ordered"], pairs="ordered", groups=groups)
    assert seen == pytest.approx(expected, abs=1e-6)


def test_an_objective_of_catboost_trains_two_estimators_with_an_evaluation_set(table):
    X, y = table[0], table[1]["binary"]
    objective = catboost_objective(y[:1000])
    models = [catboost.CatBoostRegressor(**CATBOOST, **objective.params) for _ in range(2)]
    for model in models:
        model.fit(X[:1000], y[:1000], eval_set=(X[1000:], y[1000:]))
    first, second = (model.predict(X[1000:]) for model in models)
    np.testing.assert_array_equal(first, second)
    assert ep.auc(first, y[1000:]) > 0.8


@pytest.mark.parametrize("where", ["fit", "objective"])
def test_weights_in_one_place_only_raise_in_catboost(table, where):
    X, labels, w = table
    y = labels["binary"]
    objective = catboost_objective(y, weights=w if where == "objective" else None)
    model = catboost.CatBoost({**CATBOOST, **objective.params})
    with pytest.raises(Exception, match="weights must be the same for the objective and fo"):
        model.fit(X, y, sample_weight=w if where == "fit" else None)


def test_scores_unknown_to_the_metric_of_catboost_raise():
    objective = catboost_objective([0, 1, 0])
    objective.calc_ders_range(np.zeros(2), np.array([0.0, 1.0]), None)
    for scores, labels in (([0.3, 0.3], [0.0, 1.0]), ([0.3, 0.3], [0.0, 0.0])):
        with pytest.raises(RuntimeError, match="scores that the metric has not seen"):
            objective.calc_ders_range(np.array(scores), np.array(labels), None)
