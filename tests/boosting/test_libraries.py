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
from everypair.boosting._scaled_loss import Data

ROUNDS = 8
LIGHTGBM = {
    "verbose": -1,
    "num_threads": 1,
    "lambda_l2": 1.0,
    "min_sum_hessian_in_leaf": 1.0,
    "deterministic": True,
}
LIGHTGBM_ESTIMATOR = {
    "n_estimators": ROUNDS,
    "reg_lambda": 1.0,
    "min_child_weight": 1.0,
    "n_jobs": 1,
    "verbose": -1,
    "deterministic": True,
}
XGBOOST = {"nthread": 1, "base_score": 0.0, "learning_rate": 0.1}
CATBOOST = {
    "iterations": ROUNDS,
    "learning_rate": 0.1,
    "thread_count": 2,
    "allow_writing_files": False,
    "verbose": False,
}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(2500, 4))
    y = (X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * rng.normal(size=2500) > 2.0).astype(int)
    return X, y, rng.integers(1, 4, 2500).astype(np.float64)


class TestLightgbm:
    lgb = pytest.importorskip("lightgbm")

    def train(self, X, y, rounds=ROUNDS, *, weight=None, group=None, **knobs):
        rows = self.lgb.Dataset(X, y, weight=weight, group=group)
        params = {**LIGHTGBM, "objective": lightgbm_objective(), "metric": "None"}
        return self.lgb.train(params, rows, rounds, **knobs)

    def test_training_improves_auc_and_the_metric_equals_it(self, table):
        X, y, w = table
        seen = {}
        rows = self.lgb.Dataset(X, y, weight=w)
        booster = self.lgb.train(
            {**LIGHTGBM, "objective": lightgbm_objective(), "metric": "None"}, rows, ROUNDS,
            valid_sets=[rows], feval=[lightgbm_metric(), lightgbm_metric("loss")],
            callbacks=[self.lgb.record_evaluation(seen)],
        )  # fmt: skip
        scores = booster.predict(X, raw_score=True)
        assert seen["training"]["auc_pairs"][-1] == pytest.approx(ep.auc(scores, y, weights=w))
        assert ep.auc(scores, y) > 0.9
        assert np.all(np.diff(seen["training"]["loss_pairs"]) < 0.0)

    @pytest.mark.filterwarnings("ignore:The argument 'eval_set'")  # older ones know no other
    def test_both_interfaces_give_the_same_scores(self, table):
        X, y, w = table
        native = self.train(X, y, weight=w).predict(X, raw_score=True)
        model = self.lgb.LGBMRegressor(objective=lightgbm_objective(), **LIGHTGBM_ESTIMATOR)
        model.fit(X, y, sample_weight=w, eval_set=[(X, y)], eval_metric=lightgbm_metric())
        np.testing.assert_allclose(model.predict(X), native, rtol=1e-6)
        (seen,) = model.evals_result_.values()
        assert seen["auc_pairs"][-1] == pytest.approx(ep.auc(native, y, weights=w))

    def test_the_classifier_accepts_other_labels(self, table):
        X, y, _ = table
        words = np.where(y == 1, "yes", "no")
        model = self.lgb.LGBMClassifier(objective=lightgbm_objective(), **LIGHTGBM_ESTIMATOR)
        model.fit(X, words)
        again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
        assert ep.auc(again.predict(X, raw_score=True), y) > 0.9

    def test_ranker_and_dataset_use_the_same_groups(self, table):
        X, y, _ = table
        sizes = [1000, 500, 1000]
        native = self.train(X, y, group=sizes).predict(X, raw_score=True)
        ranker = self.lgb.LGBMRanker(objective=lightgbm_objective(), **LIGHTGBM_ESTIMATOR)
        ranker.fit(X, y, group=sizes)
        np.testing.assert_allclose(ranker.predict(X, raw_score=True), native, rtol=1e-6)
        assert not np.allclose(native, self.train(X, y).predict(X, raw_score=True))


class TestXgboost:
    xgb = pytest.importorskip("xgboost")

    def train(self, rows, **knobs):
        return self.xgb.train(XGBOOST, rows, ROUNDS, obj=xgboost_objective(), **knobs)

    def test_training_improves_auc_and_the_metric_equals_it(self, table):
        X, y, w = table
        rows = self.xgb.DMatrix(X, y, weight=w)
        seen = {}
        options = {"evals": [(rows, "train")], "evals_result": seen, "verbose_eval": False}
        booster = self.train(rows, custom_metric=xgboost_metric(), **options)
        scores = booster.predict(rows, output_margin=True)
        expected = ep.auc(scores, y, weights=w)
        assert seen["train"]["auc_pairs"][-1] == pytest.approx(expected, abs=1e-6)
        assert expected > 0.9

    @pytest.mark.parametrize("weighted", [False, True])
    def test_both_interfaces_give_the_same_scores(self, table, weighted):
        X, y, w = table
        w = w if weighted else None
        native = self.train(self.xgb.DMatrix(X, y, weight=w)).predict(
            self.xgb.DMatrix(X), output_margin=True
        )
        options = {"n_estimators": ROUNDS, "n_jobs": 1, "base_score": 0.5, "learning_rate": 0.1}
        model = self.xgb.XGBClassifier(
            objective=xgboost_objective(), eval_metric=xgboost_metric(), **options
        )
        model.fit(X, y, sample_weight=w, eval_set=[(X, y)], verbose=False)
        scores = model.predict(X, output_margin=True)
        np.testing.assert_allclose(scores, native, rtol=1e-5)
        found = model.evals_result()["validation_0"]["auc_pairs"][-1]
        assert found == pytest.approx(ep.auc(scores, y), abs=1e-6)

    def test_a_query_and_its_weight(self, table):
        X, y, _ = table
        rows = self.xgb.DMatrix(X, y, qid=np.repeat([3, 5, 9], [1000, 500, 1000]))
        rows.set_weight([1.0, 2.0, 0.5])
        scores = np.random.default_rng(0).normal(size=2500).astype(np.float32)
        grad, hess = xgboost_objective()(scores, rows)
        sizes, per_row = [1000, 500, 1000], np.repeat([1.0, 2.0, 0.5], [1000, 500, 1000])
        expected = lightgbm_objective(hessian="pairs")(y, scores, per_row, sizes)
        np.testing.assert_allclose((grad, hess), expected, rtol=1e-10)
        assert ep.auc(self.train(rows).predict(rows, output_margin=True), y) > 0.85


class TestCatboost:
    catboost = pytest.importorskip("catboost")
    # CatBoost recommends packages that would speed up its Python calls.
    pytestmark = pytest.mark.filterwarnings("ignore:Failed to import numba", "ignore:Can't optim")

    @pytest.mark.parametrize("weighted", [False, True])
    def test_blocks_of_rows_learn_from_all_pairs(self, table, weighted):
        X, y, w = table
        w = w if weighted else None
        objective = catboost_objective(y, weights=w)
        model = self.catboost.CatBoost({**CATBOOST, **objective.params})
        model.fit(X, y, sample_weight=w)
        scores = model.predict(X)
        assert ep.auc(scores, y) > 0.85
        # The metric saw the scores of the whole table, in its order, after the last round.
        grad, hess = objective.loss.derivatives(Data(scores, y, w, None))
        ders = objective.calc_ders_range(scores, y, w)
        np.testing.assert_allclose(ders, -np.column_stack([grad, hess]), rtol=1e-4, atol=1e-6)
        assert model.evals_result_["learn"]["CatboostMetric"][-1] == pytest.approx(
            ep.auc(scores, y, weights=w)
        )

    def test_the_estimator_and_an_evaluation_set(self, table):
        X, y, _ = table
        objective = catboost_objective(y[:2000])
        model = self.catboost.CatBoostRegressor(**CATBOOST, **objective.params)
        model.fit(X[:2000], y[:2000], eval_set=(X[2000:], y[2000:]))
        assert ep.auc(model.predict(X[2000:]), y[2000:]) > 0.8

    def test_an_objective_can_be_used_twice(self, table):
        X, y, _ = table
        objective = catboost_objective(y)
        models = [self.catboost.CatBoost({**CATBOOST, **objective.params}) for _ in range(2)]
        first, second = (model.fit(X, y).predict(X) for model in models)
        np.testing.assert_array_equal(first, second)

    @pytest.mark.parametrize("where", ["fit", "objective"])
    def test_weights_in_one_place_only_raise(self, table, where):
        X, y, w = table
        objective = catboost_objective(y, weights=w if where == "objective" else None)
        model = self.catboost.CatBoost({**CATBOOST, **objective.params})
        with pytest.raises(Exception, match="weights must be the same for the objective and fo"):
            model.fit(X, y, sample_weight=w if where == "fit" else None)

    def test_scores_unknown_to_the_metric_raise(self, table):
        _, y, _ = table
        objective = catboost_objective(y)
        objective.calc_ders_range(np.zeros(5), y[:5], None)
        with pytest.raises(RuntimeError, match="scores that the metric has not seen"):
            objective.calc_ders_range(np.full(5, 0.3), y[:5], None)
