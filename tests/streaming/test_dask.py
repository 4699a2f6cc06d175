"""Dask collections have the result of all their rows; a lost worker changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import everypair as ep

dask = pytest.importorskip("dask")
pytest.importorskip("distributed")

import dask.array as da  # noqa: E402

from everypair.dask import accumulate, evaluate  # noqa: E402


@pytest.fixture(autouse=True)
def _in_this_process():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def rows():
    random = np.random.default_rng(0)
    labels = random.random(500) < 0.1
    return np.round(random.normal(size=500) + labels, 1).astype(np.float32), labels


@pytest.mark.parametrize("rare", ["positive", "negative"])
def test_arrays(rows, rare):
    scores, labels = rows
    found = evaluate(
        da.from_array(scores, chunks=60), da.from_array(labels, chunks=70), rare=rare, max_fpr=0.2,
        surrogates=("squared_hinge", "logistic"), split_every=3,
    )  # fmt: skip
    assert found.auc == ep.auc(scores, labels)
    assert found.variance == pytest.approx(ep.delong(scores, labels).variance, rel=1e-12)
    assert found.partial_auc == pytest.approx(
        ep.partial_auc(scores, labels, max_fpr=0.2), rel=1e-12
    )
    for name, loss in found.losses.items():
        exact = ep.pair_loss(scores.astype(np.float64), labels, surrogate=name)
        assert loss == pytest.approx(exact, rel=1e-12)


def test_frames_with_weights_and_groups(rows):
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    scores, labels = rows
    frame = pd.DataFrame({"s": scores, "y": labels, "w": np.arange(500.0), "g": np.arange(500) % 3})
    table = dd.from_pandas(frame, npartitions=4)
    assert evaluate(table.s, table.y).auc == ep.auc(scores, labels)
    merged = accumulate(table.s, table.y, weights=table.w, groups=table.g).compute()
    expected = ep.auc(scores, labels, weights=frame.w, groups=frame.g)
    assert merged.result().auc == pytest.approx(expected, rel=1e-12)
    assert len(merged.result_by_group()) == 3


def test_bounded(rows):
    scores, labels = rows
    found = evaluate(
        da.from_array(scores, chunks=60), da.from_array(labels, chunks=60), mode="bounded"
    )
    whole = ep.PairAccumulator(mode="bounded")
    whole.add(scores, labels)
    assert found == whole.result()


def test_wrong_arguments_are_explained(rows):
    scores, labels = (da.from_array(x, chunks=100) for x in rows)
    for arguments, text in (
        ({"scores": [1.0], "labels": [1]}, "Dask Array or Series"),
        ({"scores": scores, "labels": labels, "mode": "fast"}, "mode must be"),
        ({"scores": scores, "labels": labels, "split_every": 1}, "split_every"),
        ({"scores": scores, "labels": da.zeros_like(labels)}, "0 positives and 500 negatives"),
        ({"scores": scores, "labels": da.ones_like(labels)}, "500 positives and 0 negatives"),
    ):
        with pytest.raises(ValueError, match=text):
            evaluate(**arguments)


@pytest.mark.parametrize(("part", "moments"), [("dask", 3), ("checkpoint", 1)])
def test_nothing_is_lost_or_doubled_if_workers_are_killed(part, moments):
    options = ["--only", part, "--moments", str(moments)]
    command = [sys.executable, "-m", "benchmarks.kill_workers", *options]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    assert json.loads(ran.stdout.splitlines()[-1]) == {"moments": moments, "wrong": 0}
