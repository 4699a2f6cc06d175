"""Metrics and objectives of models that several workers train are those of all rows."""

from __future__ import annotations

import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

import everypair as ep

pytest.importorskip("xgboost")
import xgboost as xgb

from everypair.boosting import xgboost_distributed_metric, xgboost_objective
from tests.boosting.distributed_worker import (
    CASES,
    PARAMETERS,
    ROUNDS,
    SCORES,
    matrix_of,
    results_of,
    rows_of,
)


@pytest.fixture(scope="module")
def workers():
    """Run two workers and return the results of each."""
    tracker = pytest.importorskip("xgboost.tracker").RabitTracker(n_workers=2, host_ip="127.0.0.1")
    tracker.start()
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(results_of, rank, tracker.worker_args()) for rank in range(2)]
        results = [future.result(timeout=240) for future in futures]
    tracker.wait_for()
    return results


def test_all_workers_get_the_auc_of_all_rows(workers):
    (results, *local_aucs, _), (_, *others, _) = workers
    expected = ep.auc(results["even"][1], rows_of("even")[1])
    # XGBoost keeps six digits.
    assert local_aucs[1] == others[1] == pytest.approx(expected, abs=1e-6)
    assert abs((local_aucs[0] + others[0]) / 2 - expected) > 1e-4  # an average over workers


@pytest.mark.parametrize("case", CASES)
def test_gradients_and_trees_of_two_workers_equal_those_of_one_process(workers, case):
    table, labels, weights, worker = rows_of(case)
    whole = matrix_of(table, labels, weights, slice(None))
    expected = np.array(xgboost_objective()(SCORES, whole))
    booster = xgb.train(PARAMETERS, whole, ROUNDS, obj=xgboost_objective())
    expected_scores = booster.predict(whole, output_margin=True)
    for rank, (results, *_) in enumerate(workers):
        derivatives, scores = results[case]
        np.testing.assert_allclose(derivatives, expected[:, worker == rank], rtol=1e-6, atol=1e-6)
        if (worker == rank).any():  # XGBoost discards the trees of a worker without rows
            np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


def test_weights_and_groups_that_are_not_supported_raise_on_all_workers(workers):
    for *_, (of_weights, of_groups, of_objective) in workers:
        for message in (of_weights, of_groups):
            assert re.search("rows must have no weights, no groups .* worker 1 has them", message)
        assert re.search("rows must have no groups .* worker 1 have them", of_objective)


def test_one_process():
    random = np.random.default_rng(0)
    labels, scores = random.random(100) < 0.3, random.normal(size=100).astype(np.float32)
    matrix = xgb.DMatrix(np.zeros((100, 1)), label=labels)
    name, value = xgboost_distributed_metric("partial_auc", max_fpr=0.2)(scores, matrix)
    assert name == "auc_partial"
    assert value == pytest.approx(ep.partial_auc(scores, labels, max_fpr=0.2), rel=1e-12)
    name, value = xgboost_distributed_metric("loss", surrogate="square")(scores, matrix)
    assert value == pytest.approx(ep.pair_loss(scores, labels, surrogate="square"), rel=1e-6)
    with pytest.raises(ValueError, match="metric must be"):
        xgboost_distributed_metric("rmse")
    with pytest.raises(ValueError, match="max_fpr must be given"):
        xgboost_distributed_metric("partial_auc")
