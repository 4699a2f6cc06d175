"""Objectives and metrics of ordered and survival pairs."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import everypair as ep
from everypair import naive
from everypair.boosting import (
    catboost_objective,
    lightgbm_metric,
    lightgbm_objective,
    xgboost_metric,
    xgboost_objective,
)

ROUNDS = 20


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 4))
    risk = X[:, 0] + X[:, 1] * X[:, 2]
    times = np.exp(-risk) * rng.exponential(size=1500)
    censored = rng.exponential(2.0, 1500)
    signed = np.where(times < censored, times, -censored).astype(np.float32)
    return X, (risk + rng.normal(size=1500)).astype(np.float32), signed


@pytest.mark.parametrize("make", [lightgbm_objective, xgboost_objective])
@pytest.mark.parametrize("pairs", ["ordered", "survival"])
def test_derivatives_equal_the_double_sum(table, make, pairs):
    labels = table[1 if pairs == "ordered" else 2][:80]
    scores = np.random.default_rng(1).normal(size=80)
    objective = make(pairs=pairs)
    grad, hess = objective(labels, scores)
    _, exact_grad, exact_hess = naive.pair_derivatives(
        scores, labels, pairs=pairs, reduction="sum",
        surrogate=objective.surrogate, margin=objective.scaled_margin,
    )  # fmt: skip
    for got, wanted in ((grad, exact_grad / 80), (hess, exact_hess / 80)):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())
    assert repr(pickle.loads(pickle.dumps(objective))) == repr(objective)


def test_two_grades_have_the_derivatives_of_binary_labels(table):
    labels, scores = (table[1][:80] > 1.0).astype(float), table[0][:80, 0]
    for got, wanted in zip(
        xgboost_objective(pairs="ordered")(labels, scores),
        xgboost_objective()(labels, scores),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_queries_of_equal_size_have_the_scale_of_one(table):
    labels, scores = table[1][:90], np.zeros(90)
    objective = lightgbm_objective(pairs="ordered")
    grad, _ = objective(np.tile(labels, 10), np.tile(scores, 10), None, [90] * 10)
    np.testing.assert_allclose(grad[:90], objective(labels, scores)[0], rtol=1e-5)


def test_the_logistic_hessian_is_for_two_classes():
    with pytest.raises(ValueError, match="hessian must be 'pairs'"):
        lightgbm_objective(pairs="ordered", hessian="logistic")
    with pytest.raises(ValueError, match="average must be"):
        lightgbm_metric(average="query")
    assert lightgbm_objective().hessian == "logistic"


def test_metrics_are_the_concordance_index(table):
    _, target, signed = table
    scores = table[0][:, 0]
    expected = ep.auc(scores, target, pairs="ordered")
    assert lightgbm_metric(pairs="ordered")(target, scores)[1] == expected
    expected = ep.auc(scores, signed, pairs="survival", censoring="uno")
    assert xgboost_metric(pairs="survival", censoring="uno")(signed, scores) == expected
    groups = np.repeat(np.arange(15), 100)
    expected = ep.auc(scores, target, groups=groups, pairs="ordered", average="groups")
    metric = lightgbm_metric(pairs="ordered", average="groups")
    assert metric(target, scores, None, [100] * 15)[1] == expected


def xgboost_scores(X, labels, pairs):
    xgb = pytest.importorskip("xgboost")
    groups = np.repeat([0, 1, 2], 500)
    rows, seen = xgb.DMatrix(X, labels, qid=groups), {}
    booster = xgb.train(
        {"nthread": 1, "base_score": 0.0}, rows, ROUNDS, obj=xgboost_objective(pairs=pairs),
        custom_metric=xgboost_metric(pairs=pairs), evals=[(rows, "train")], evals_result=seen,
        verbose_eval=False,
    )  # fmt: skip
    scores = booster.predict(rows)
    expected = ep.auc(scores, labels, pairs=pairs, groups=groups)
    assert seen["train"]["auc_pairs"][-1] == pytest.approx(expected, abs=1e-6)
    return scores


def lightgbm_scores(X, labels, pairs):
    lgb = pytest.importorskip("lightgbm")
    params = {"metric": "None", "verbose": -1, "num_threads": 1, "lambda_l2": 1.0}
    params["objective"] = lightgbm_objective(pairs=pairs)
    return lgb.train(params, lgb.Dataset(X, labels), ROUNDS).predict(X, raw_score=True)


def catboost_scores(X, labels, pairs):
    catboost = pytest.importorskip("catboost")
    options = {"iterations": ROUNDS, "learning_rate": 0.3, "thread_count": 2, "verbose": False}
    options |= catboost_objective(labels, pairs=pairs).params
    model = catboost.CatBoost({**options, "allow_writing_files": False}).fit(X, labels)
    scores = model.predict(X)
    last = model.get_evals_result()["learn"]["CatboostMetric"][-1]
    assert last == pytest.approx(ep.auc(scores, labels, pairs=pairs), abs=1e-5)
    return scores


@pytest.mark.filterwarnings("ignore:Failed to import numba", "ignore:Can't optim")
@pytest.mark.parametrize("train", [xgboost_scores, lightgbm_scores, catboost_scores])
@pytest.mark.parametrize("pairs", ["ordered", "survival"])
def test_training_orders_the_rows(table, train, pairs):
    labels = table[1 if pairs == "ordered" else 2]
    assert ep.auc(train(table[0], labels, pairs), labels, pairs=pairs) > 0.75


def test_catboost_finds_the_derivatives_of_every_block(table):
    _, labels, _ = table
    scores = np.random.default_rng(2).normal(size=1500)
    objective = catboost_objective(labels, pairs="ordered")
    objective.update(scores)
    wanted = np.column_stack(xgboost_objective(pairs="ordered")(labels, scores))
    got = objective.calc_ders_range(scores[300:700], labels[300:700], None)
    np.testing.assert_allclose(got, -wanted[300:700], rtol=1e-5, atol=1e-7)


def test_a_partial_objective_moves_only_the_hardest_negatives(table):
    scores, labels = table[0][:200, 0], (table[1][:200] > 1.0).astype(float)
    grad, hess = xgboost_objective(max_fpr=0.1)(labels, scores)
    negative = labels == 0
    n_kept = int(np.ceil(0.1 * negative.sum()))
    kept = np.sort(scores[negative])[-n_kept]
    assert not grad[negative & (scores < kept)].any()
    assert (hess[negative & (scores > kept)] > 0.0).all()
    assert "max_fpr=0.1" in repr(xgboost_objective(max_fpr=0.1))
    with pytest.raises(ValueError, match="left out"):
        lightgbm_objective(pairs="ordered", max_fpr=0.1)


def test_metrics_of_a_part_of_the_curve(table):
    labels, scores = (table[1] > 1.0).astype(float), table[0][:, 0]
    for rates in ({"max_fpr": 0.2}, {"min_tpr": 0.5}, {"max_fpr": 0.2, "min_tpr": 0.5}):
        expected = ep.partial_auc(scores, labels, **rates, standardise=True)
        assert xgboost_metric(**rates)(labels, scores) == expected
        assert lightgbm_metric(**rates)(labels, scores) == ("auc_pairs", expected, True)
        metric = xgboost_metric("loss", **rates)
        options = {"surrogate": metric.loss.surrogate, "margin": metric.loss.scaled_margin}
        assert metric(labels, scores) == ep.pair_loss(scores, labels, **options, **rates)
    with pytest.raises(ValueError, match="max_fpr must be a number above 0"):
        lightgbm_metric(max_fpr=0.0)
    assert lightgbm_metric("loss", max_fpr=0.0)(labels, scores)[1] > 0
    with pytest.raises(ValueError, match="must be left out if pairs is not 'binary'"):
        xgboost_metric(pairs="ordered", max_fpr=0.2)
