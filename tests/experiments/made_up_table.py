"""The files of a made-up experiment on a table, without training."""

from __future__ import annotations

import json

import numpy as np

from everypair.experiments.data import profile
from everypair.experiments.plan import Cell, Record, Settings, TableFile, Trial

SETTINGS = Settings(
    model="families", table=TableFile("somewhere/fraud.csv", "fraud", positive="1"), fingerprint="f"
)


def contender(name, family, loss, auc, **more):
    plain = {"name": name, "family": family, "loss": loss, "validation_auc": auc + 0.004}
    return {**plain, "test_auc": auc, "difference": auc - 0.91, "interval": None, **more}


def summary(auc=0.91):
    parameters = [{"family": "lightgbm", "loss": "pairs", "num_leaves": 15, "rounds": 70.0}]
    winner = contender("LightGBM pairs", "lightgbm", "pairs", auc, interval=[0.88, 0.93])
    rivals = [
        contender("LightGBM pairs", "lightgbm", "pairs", auc),
        contender("LightGBM logistic", "lightgbm", "logistic", 0.905, interval=[-0.011, 0.002]),
        contender("linear balanced", "linear", "balanced", 0.86, interval=[-0.07, -0.02]),
    ]
    names = ["amount", "country <b>", "hour", "age", *(f"column {k}" for k in range(20))]
    return {
        "winner": {**winner, "parameters": parameters},
        "contenders": rivals,
        "skipped": ["catboost is not installed: pip install catboost"],
        "importance": [{"column": n, "drop": 0.12 / (k + 1)} for k, n in enumerate(names)],
    }


def data(**more):
    column = {"use": "feature", "kind": "number", "missing": 0.0, "distinct": 400, "note": ""}
    return {
        "fingerprint": "f",
        "file": "fraud.csv",
        "rows": 5000,
        "positives": 150,
        "positive": "fraud = 1",
        "parts": {
            "training": {"rows": 4000, "positives": 120},
            "test": {"rows": 1000, "positives": 30},
        },
        "split": "at random, with the same share of positives in every part",
        "columns": [
            {**column, "name": "amount", "missing": 0.031},
            {**column, "name": "country <b>", "kind": "text", "distinct": 12},
            *({**column, "name": f"column {k}"} for k in range(20)),
            {**column, "name": "id", "use": "not used", "note": "all values are equal"},
            {"name": "fraud", "use": "the label", "note": "the label"},
        ],
        "few_positives": "",
        "warnings": ["'amount' alone ranks the rows with an AUC of 0.990."],
        **more,
    }


def scores(n=1000, n_pos=30):
    rng = np.random.default_rng(0)
    labels = np.arange(n) < n_pos
    values = rng.normal(size=n) + 1.9 * labels
    return values, labels, 1 / (1 + np.exp(4.3 - 1.5 * values))


def write(folder, *, auc=0.91, record=None):
    """Write all three files of an experiment."""
    profile.write(folder, data() if record is None else record)
    (folder / "winner").mkdir(parents=True, exist_ok=True)
    (folder / "winner" / "summary.json").write_text(json.dumps(summary(auc)))
    values, labels, probabilities = scores()
    arrays = {"scores": values, "labels": labels.astype(np.int8), "probabilities": probabilities}
    np.savez_compressed(folder / "winner" / "test_scores.npz", **arrays)


def records():
    """Return the records of such an experiment: one seed, no learning curves."""
    found = []
    for family, loss, auc in (("lightgbm", "pairs", 0.91), ("linear", "balanced", 0.86)):
        trial = Trial(Cell("table", 0.0, loss, family, 0), 0, 0.0)
        found.append(Record(trial, "finished", {}, validation_auc=auc, test_auc=auc, seconds=3.5))
    return found
