"""Metrics of models that several workers train are those of all rows."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import everypair as ep

pytest.importorskip("xgboost")
from everypair.boosting import xgboost_distributed_metric

_WORKER = """
import json, sys
import numpy as np
import xgboost as xgb
from everypair.boosting import xgboost_distributed_metric, xgboost_metric

rank, world, arguments = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
table = np.random.default_rng(0).normal(size=(600, 3))
labels = table[:, 0] + table[:, 1] > 1.5
mine = np.arange(600) < 100 if rank == 0 else (np.arange(600) >= 100) == (rank == 1)
with xgb.collective.CommunicatorContext(dmlc_task_id=str(rank), **arguments):
    matrix = xgb.DMatrix(table[mine, :2], label=labels[mine])
    result = {}
    booster = xgb.train(
        {"objective": "binary:logistic", "max_depth": 2, "disable_default_eval_metric": True},
        matrix, 3, evals=[(matrix, "all")], evals_result=result, verbose_eval=False,
        custom_metric=xgboost_distributed_metric(),
    )
    local = xgboost_metric()(booster.predict(matrix), matrix)[1]
everything = booster.predict(xgb.DMatrix(table[:, :2]))
print(json.dumps([result["all"]["auc_pairs"], local, everything.tolist()]))
"""


def test_all_workers_get_the_auc_of_all_rows():
    tracker = pytest.importorskip("xgboost.tracker").RabitTracker(n_workers=2, host_ip="127.0.0.1")
    tracker.start()
    arguments = json.dumps(tracker.worker_args())
    processes = [
        subprocess.Popen([sys.executable, "-c", _WORKER, str(rank), "2", arguments],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=120) for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs
    tracker.wait_for()
    (history, local, scores), (same, other, _) = (
        json.loads(output.splitlines()[-1]) for output, _ in outputs
    )
    table = np.random.default_rng(0).normal(size=(600, 3))
    labels = table[:, 0] + table[:, 1] > 1.5
    assert history == same
    expected = ep.auc(np.array(scores, np.float32), labels)
    assert history[-1] == pytest.approx(expected, abs=1e-6)  # XGBoost keeps six digits
    assert abs((local + other) / 2 - expected) > 1e-4  # what an average over workers would be


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


_LIGHTGBM = """
import json
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
import lightgbm
from everypair.dask import evaluate

if __name__ == "__main__":
    random = np.random.default_rng(0)
    table = random.normal(size=(400, 2))
    labels = (table[:, 0] + random.normal(size=400) > 1.0).astype(int)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        X, y = da.from_array(table, chunks=(200, 2)), da.from_array(labels, chunks=200)
        model = lightgbm.DaskLGBMClassifier(client=client, n_estimators=4, num_leaves=4, verbose=-1)
        scores = model.fit(X, y).predict(X, raw_score=True)
        found = evaluate(scores, y)
        scores = scores.compute().ravel().tolist()
        print(json.dumps([found.auc, found.n_rows, scores, labels.tolist()]))
"""


def test_predictions_of_distributed_lightgbm_are_evaluated_after_training(tmp_path):
    for needed in ("lightgbm", "distributed", "pandas"):
        pytest.importorskip(needed)
    script = tmp_path / "train.py"  # a file, which the processes of the cluster can import
    script.write_text(_LIGHTGBM)
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-3000:]
    auc, n_rows, scores, labels = json.loads(ran.stdout.splitlines()[-1])
    assert n_rows == 400
    assert auc == ep.auc(scores, labels)
