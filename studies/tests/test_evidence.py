"""The comparison of objectives on tables, and what the page of the evidence says of its rows."""

from __future__ import annotations

import json
import re
from argparse import Namespace

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("sklearn")
pytest.importorskip("pyarrow")

import pandas as pd

from benchmarks.rows import ROOT, ROWS
from everypair.experiments.plan import FULL_BATCH
from everypair.experiments.search import runner
from everypair.experiments.search import store as stores
from studies import evidence, wins


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


PAGE = (ROOT / "docs" / "evidence.md").read_text()


def test_the_page_lists_as_wins_what_the_committed_rows_show():
    section = PAGE[
        PAGE.index("## Pairs win\n") : PAGE.index("## The open questions of the paper\n")
    ]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    assert lines == wins.table().splitlines()  # which raises if a lead is not significant


@pytest.mark.parametrize("win", wins.WINS, ids=lambda win: win.situation)
def test_a_win_names_committed_rows(win):
    assert win.leads
    for path in re.findall("`(.+?)`", win.rows):
        folders = (ROOT / "studies", ROOT / "studies" / "results", ROOT / "benchmarks")
        assert any((folder / path).is_file() for folder in folders), path


LOGISTIC = ("cifar10", "logistic")
UNCLEAR = {
    "an interval around 0": lambda: wins.Lead("", low=-0.01),
    "an interval that begins at 0": lambda: wins.Lead("", low=0.0),
    "no interval": lambda: wins.Lead("", low=float("nan")),
    "p of 0.05": lambda: wins.Lead("", low=5, p=0.05),
    "linear models": lambda: wins.tables("linear", "logloss", "test"),
    "CIFAR10": lambda: wins.image_lead(wins.HINGE, LOGISTIC, imratio=0.1),
    "the full batch": lambda: wins.few_positives(FULL_BATCH, "logistic"),
}


@pytest.mark.parametrize("lead", UNCLEAR)
def test_what_is_not_significant_is_no_win(lead):
    win = wins.WINS[0]._replace(leads={lead: UNCLEAR[lead]})
    with pytest.raises(ValueError, match=f"{lead}: .* is no win"):
        wins.table((win,))


def test_the_pages_have_the_measured_time_of_a_boosting_round():
    rows = pd.read_csv(ROWS / "boosting" / "round.csv")
    seconds = rows.pivot_table("median", "positives", "backend")
    ratios = seconds["lightgbm-everypair"] / seconds["lightgbm-logloss"]
    for page in (PAGE, (ROOT / "docs" / "boosting.md").read_text()):
        for share, words in ((0.5, "(half of the rows positive)"), (0.01, "times (1 %)")):
            assert re.search(rf"\b{ratios[share]:.2f} (times )?{re.escape(words)}", page), words
