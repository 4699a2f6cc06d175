"""Metrics of models that several workers train are those of all rows."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import everypair as ep

pytest.importorskip("xgboost")
from everypair.boosting import xgboost_distributed_metric, xgboost_objective
from tests.boosting.distributed_worker import (
    CASES,
    PARAMETERS,
    ROUNDS,
    SCORES,
    matrix_of,
    rows_of,
)


@pytest.fixture(scope="module")
def outputs():
    """Run two workers and return what each has printed."""
    tracker = pytest.importorskip("xgboost.tracker").RabitTracker(n_workers=2, host_ip="127.0.0.1")
    tracker.start()
    arguments = json.dumps(tracker.worker_args())
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.boosting.distributed_worker", str(rank), arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=240) for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs
    tracker.wait_for()
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


def test_all_workers_get_the_auc_of_all_rows(outputs):
    (found, local), (other, local_of_other) = outputs
    labels = rows_of("even")[1]
    history, same, scores = found["even"][3], other["even"][3], found["even"][2]
    assert history == same
    expected = ep.auc(np.array(scores, np.float32), labels)
    # XGBoost keeps six digits.
    assert history["all"]["auc_pairs"][-1] == pytest.approx(expected, abs=1e-6)
    assert abs((local + local_of_other) / 2 - expected) > 1e-4  # an average over workers


@pytest.mark.parametrize("case", CASES)
def test_gradients_and_trees_of_two_workers_equal_those_of_one_process(outputs, case):
    import xgboost as xgb

    table, labels, weights, worker = rows_of(case)
    whole = matrix_of(table, labels, weights, slice(None))
    expected = xgboost_objective()(SCORES, whole)
    booster = xgb.train(PARAMETERS, whole, ROUNDS, obj=xgboost_objective())
    expected_scores = booster.predict(whole, output_margin=True)
    for rank, (found, _) in enumerate(outputs):
        for derivatives, of_all in zip(found[case][:2], expected, strict=True):
            of_worker = of_all[worker == rank]
            np.testing.assert_allclose(derivatives, of_worker, rtol=1e-6, atol=1e-6)
        if (worker == rank).any():  # XGBoost discards the trees of a worker without rows
            np.testing.assert_allclose(found[case][2], expected_scores, atol=1e-5)


def test_weights_and_groups_that_are_not_supported_raise_on_all_workers(outputs):
    for found, _ in outputs:
        (of_weights,) = found["weights are refused"]
        of_groups, of_objective = found["groups are refused"]
        for message in (of_weights, of_groups):
            assert re.search("rows must have no weights, no groups .* worker 1 has them", message)
        assert re.search("rows must have no groups .* worker 1 have them", of_objective)


def test_one_process():
    import xgboost as xgb

    random = np.random.default_rng(0)
    labels, scores = random.random(100) < 0.3, random.normal(size=100).astype(np.float32)
    matrix = xgb.DMatrix(np.zeros((100, 1)), label=labels)
    name, value = xgboost_distributed_metric("partial_auc", max_fpr=0.2)(scores, matrix)
    assert name == "auc_partial"
    assert value == pytest.approx(ep.partial_auc(scores, labels, max_fpr=0.2), rel=1e-12)
    name, value = xgboost_distributed_metric("loss", surrogate="square")(scores, matrix)
    assert value == pytest.approx(ep.pair_loss(scores, labels, surrogate="square"), rel=1e-6)
    matrix.set_weight(np.ones(100))
    with pytest.raises(ValueError, match="no weights"):
        xgboost_distributed_metric()(scores, matrix)
    with pytest.raises(ValueError, match="metric must be"):
        xgboost_distributed_metric("rmse")
    with pytest.raises(ValueError, match="max_fpr must be given"):
        xgboost_distributed_metric("partial_auc")
