"""The record about a table: parts, the use of columns, and suspicions."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from everypair.experiments.data import profile, sources, splits
from everypair.experiments.plan import TableFile


def described(tmp_path, frame, **options):
    path = tmp_path / "my.csv"
    frame.to_csv(path, index=False)
    table = TableFile(str(path), "y", **options)
    dataset = sources.load("table", table=table)
    rows = splits.split_rows(dataset, imratio=0, seed=0, protocol="corrected")
    encoder = splits.fit_encoder(dataset, rows.subtrain)
    return profile.describe(dataset, table, rows, encoder)


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    y = rng.random(500) < 0.2
    return pd.DataFrame(
        {
            "x": rng.normal(size=500) + y,
            "town": rng.choice(["A", "B"], 500),
            "same": 1,
            "note": [f"text {k}" for k in range(500)],
            "half": np.where(np.arange(500) % 2, rng.normal(size=500), np.nan),
            "y": y.astype(int),
        }
    )


def test_rows_parts_and_columns(tmp_path, frame):
    record = described(tmp_path, frame, drop=("half",))
    assert json.loads(json.dumps(record)) == record
    n_pos = int(frame["y"].sum())
    assert (record["rows"], record["positives"], record["positive"]) == (500, n_pos, "y = 1")
    assert sum(part["rows"] for part in record["parts"].values()) == 500
    assert sum(part["positives"] for part in record["parts"].values()) == n_pos
    columns = {column["name"]: column for column in record["columns"]}
    assert columns["x"]["use"] == "feature"
    assert columns["y"]["use"] == "the label"
    assert columns["same"]["note"] == "all values are equal"
    assert columns["half"]["note"] == "dropped by --drop"
    assert columns["note"]["note"].startswith("text: 320 different values, none in 10 rows")
    assert record["warnings"] == []
    assert record["few_positives"] == ""
    lines = profile.summary(record)
    assert lines[0] == f"my.csv: 500 rows, {n_pos} of them positive (y = 1)."
    assert "'same' (all values are equal)" in lines[1]


def test_suspicious_columns_are_named(tmp_path, frame):
    rng = np.random.default_rng(1)
    frame["id"] = rng.permutation(500)
    frame["outcome"] = np.where(frame["y"] == 1, "closed", "open")
    frame["amount"] = frame["y"] * 10 + rng.random(500)
    warnings = described(tmp_path, frame)["warnings"]
    assert len(warnings) == 3
    assert "'id' looks like a row number" in warnings[0]
    assert "'outcome' alone ranks the rows with an AUC of 1.000" in warnings[1]
    assert "--drop 'amount'" in warnings[2]


def test_repeated_rows_and_few_positives_are_named(tmp_path, frame):
    small = frame[["x", "town", "y"]].iloc[:100].copy()
    small["y"] = [1] * 5 + [0] * 95
    twice = pd.concat([small, small.iloc[50:]])
    record = described(tmp_path, twice)
    assert "33.3% of the rows repeat another row" in record["warnings"][0]
    assert record["few_positives"].startswith("Few positives: 3 in the training part and 1 in the")


def test_few_combinations_of_values_are_not_called_repeated_rows(tmp_path, frame):
    few = pd.DataFrame({"town": frame["town"], "open": frame.index % 2, "y": frame["y"]})
    assert few.duplicated().mean() > 0.9
    assert described(tmp_path, few)["warnings"] == []


def test_unreadable_values_are_named(tmp_path, frame):
    frame["x"] = frame["x"].map("{:.3f}".format)
    frame.loc[::50, "x"] = "unknown"
    column = described(tmp_path, frame)["columns"][0]
    assert column["note"].startswith("2.0% of the values cannot be read as numbers and count as")


def test_a_record_is_kept_in_a_folder(tmp_path):
    assert profile.read(tmp_path) is None
    profile.write(tmp_path, {"rows": 3})
    assert profile.read(tmp_path) == {"rows": 3}
