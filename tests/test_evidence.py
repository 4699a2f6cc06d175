"""The comparison of objectives on tables: its trials, its rows, and that a run is continued."""

from __future__ import annotations

import json
from argparse import Namespace

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("sklearn")
pytest.importorskip("pyarrow")

import pandas as pd

from benchmarks import evidence
from everypair.experiments.search import runner
from everypair.experiments.search import store as stores


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 3))
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame["label"] = (X[:, 0] + rng.standard_normal(120) > 0.5).astype(int)
    (tmp_path / "tabular").mkdir()
    frame.to_parquet(tmp_path / "tabular" / "tiny.parquet")
    manifest = {"tabular": [{"name": "tiny", "rows": 120, "features": 3}]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setenv("EVERYPAIR_DATA", str(tmp_path))
    return tmp_path


def test_all_methods_of_all_families_are_trials():
    trials = evidence.grid_of("tiny", list(evidence.FAMILIES), 10).trials()
    assert len(trials) == 10 * sum(len(methods) for _, methods, *_ in evidence.FAMILIES.values())
    assert len(set(trials)) == len(trials)


def test_a_run_writes_a_row_for_each_trial_and_is_continued(folder, monkeypatch):
    def run_here(grid, settings, store, *, work, workers):
        """Run the trials in this process, which is faster than to start others."""
        store.prepare(grid, settings)
        while claim := store.claim():
            counts.append(claim.trial)
            store.finish(claim, *work([claim.trial], None))

    counts = []
    monkeypatch.setattr(runner, "run", run_here)
    output = folder / "rows.csv"
    options = {"table": None, "family": ["linear"], "rows": 10**9, "processes": 1}
    options |= {"store": folder / "evidence.db", "output": output}
    evidence.run(Namespace(splits=1, **options))
    evidence.run(Namespace(splits=2, **options))
    assert len(counts) == 8  # those of the first split are run once
    rows = pd.read_csv(output)
    assert rows["method"].tolist() == ["everypair", "logloss", "balanced", "svm"] * 2
    assert rows["split"].tolist() == [0] * 4 + [1] * 4
    assert rows["test"].between(0.5, 1).all()
    assert rows["plain"].isna().all()
    with stores.open(f"sqlite:///{folder}/evidence.db#tiny") as store:
        assert store.counts() == (0, 0, 8)
