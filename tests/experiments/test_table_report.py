"""The report of a table: the winner, alerts, curves, columns, warnings."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess

import numpy as np
import pytest

import everypair as ep
from everypair.experiments import report
from everypair.experiments.plan import Settings, TableFile
from everypair.experiments.report import table_facts, tables, wording
from everypair.experiments.report.page import page
from tests.experiments import made_up, made_up_table
from tests.experiments.test_page import Reader


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fraud")
    made_up_table.write(folder)
    return folder


@pytest.fixture(scope="module")
def study(folder):
    return report.study_of(made_up_table.records(), made_up_table.SETTINGS, folder=folder)


@pytest.fixture(scope="module")
def read(study):
    return Reader(page(study))


def test_the_page_answers_the_questions_of_a_data_scientist(read):
    ids = {element["id"] for element in read.all("section")}
    assert ids == {"models", "alerts", "curves", "columns", "data", "cost", "how"}
    [lead] = read.all("p", **{"class": "lead"})
    assert lead["text"].startswith("LightGBM pairs won, with a test AUC of 0.910 (95 % interval")
    assert "It is ahead of linear balanced; the test rows do not separate the rest." in lead["text"]
    captions = [element["text"] for element in read.all("figcaption")]
    assert captions[0].startswith("ROC curve: AUC 0.9")
    assert "95 % interval" in captions[0]
    assert "average precision" in captions[1]
    assert "Calibration" in captions[2]
    assert len(read.all(role="img")) == 4
    text = " ".join(element["text"] for element in read.all("body"))
    assert "catboost is not installed" in text
    assert "num leaves 15" in text
    assert "country <b>" in text


def test_values_that_were_never_tried_are_not_printed(read):
    heads = {element["text"] for element in read.all("th")}
    assert not heads & {"Rate", "Batch", "Seeds", "At the edge"}


def test_warnings_are_on_the_page(read):
    [banner] = read.all(**{"class": "banner"})
    assert "'amount' alone ranks the rows" in banner["text"]


def test_a_test_auc_near_one_is_suspicious(tmp_path):
    made_up_table.write(tmp_path, auc=0.985)
    facts = table_facts.read(tmp_path)
    assert "A test AUC of 0.985 is rare" in facts.warnings[-1]


def test_the_threshold_table_counts_alerts_and_caught_positives():
    values, labels, probabilities = made_up_table.scores()
    rows = table_facts.HeldOutScores(values, labels, probabilities).thresholds()
    assert [row.alerts for row in rows] == [1, 2, 5, 10, 20, 50, 100, 200, 500]
    for row in rows:
        above = values >= row.score
        assert row.alerts == above.sum()
        assert row.caught == labels[above].sum()
        assert row.recall == row.caught / 30
        assert row.precision == row.caught / row.alerts


def test_tied_scores_are_one_threshold():
    labels = np.array([True, False] * 500)
    rows = table_facts.HeldOutScores(np.repeat([2.0, 1.0], 500), labels, np.empty(0)).thresholds()
    assert [row.alerts for row in rows] == [500]
    few = table_facts.HeldOutScores(np.arange(4.0), labels[:4], np.empty(0)).thresholds()
    assert [row.alerts for row in few] == [2]


def test_curves_agree_with_the_metrics():
    values, labels, probabilities = made_up_table.scores(4000, 400)
    scores = table_facts.HeldOutScores(values, labels, probabilities)
    auc, low, high = scores.auc()
    assert low < auc == ep.auc(values, labels) < high
    curve, below, above = scores.roc()
    assert np.all(below <= curve + 0.03)
    assert np.all(curve <= above + 0.03)
    assert np.trapezoid(curve, table_facts.GRID) == pytest.approx(auc, abs=0.01)
    precision = scores.precision_recall()
    assert precision[1:].mean() == pytest.approx(ep.average_precision(values, labels), abs=0.02)
    assert precision[-1] >= 0.1
    bins = scores.calibration()
    assert sum(one.n for one in bins) == 4000
    assert all(one.low <= one.observed <= one.high for one in bins)


def test_missing_or_damaged_files_leave_parts_out(tmp_path):
    facts = table_facts.read(tmp_path)
    assert (facts.data, facts.summary, facts.scores, facts.warnings) == (None, None, None, ())
    made_up_table.write(tmp_path)
    (tmp_path / "winner" / "test_scores.npz").write_bytes(b"nothing")
    (tmp_path / "data.json").write_text("{")
    made = report.study_of(made_up_table.records(), made_up_table.SETTINGS, folder=tmp_path)
    read = Reader(page(made))
    assert {element["id"] for element in read.all("section")} == {
        "models",
        "columns",
        "cost",
        "how",
    }
    made_up_table.write(tmp_path)
    assert table_facts.read(tmp_path, "other data").data is None


def test_the_page_of_losses_shows_the_data_as_well(folder, tmp_path):
    shutil.copy(folder / "data.json", tmp_path)
    table = TableFile("somewhere/fraud.csv", "fraud")
    settings = Settings(table=table, fingerprint="f")
    records = made_up.records(made_up.grid("table", (0.0,)), epochs=3)
    made = report.study_of(records, settings, folder=tmp_path)
    read = Reader(page(made))
    assert "data" in {element["id"] for element in read.all("section")}
    assert read.all(**{"class": "banner"})
    assert "Share of positives: unchanged" not in " ".join(e["text"] for e in read.all("h4"))


def test_files_and_json_hold_the_tables(study, tmp_path):
    paths = report.write(study, study.settings, tmp_path, formats=("html", "csv"))
    names = {path.name for path in paths.files}
    assert names == {"report.html", "contenders.csv", "thresholds.csv", "columns.csv"}
    lines = (tmp_path / "contenders.csv").read_text().splitlines()
    assert lines[0] == "name,family,loss,weight,validation_auc,test_auc,difference,low,high"
    assert len(lines) == 4
    plain = report.as_json(study)
    assert json.loads(json.dumps(plain))["thresholds"][0]["alerts"] == 1
    assert plain["data"]["rows"] == 5000


def test_the_lead_says_what_the_intervals_show():
    def text(*intervals):
        rivals = [{"name": f"rival {k}", "interval": found} for k, found in enumerate(intervals)]
        winner = {"name": "a", "test_auc": 0.9, "interval": None}
        summary = {"winner": winner, "contenders": [winner, *rivals]}
        return wording.winner(summary)

    assert text() == "A won, with a test AUC of 0.900."
    assert text((-0.1, 0.1)).endswith("do not show that it is better than the others.")
    assert text((-0.1, -0.05)).endswith("It is ahead of all others on the test rows.")


@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")
def test_the_page_prints(study, tmp_path):
    (tmp_path / "report.html").write_text(page(study))
    target = tmp_path / "report.pdf"
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--print-to-pdf={target}")
    subprocess.run(
        ["chromium", *options, f"file://{tmp_path / 'report.html'}"],
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert target.read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", '=1,"x'])
def test_a_spreadsheet_takes_no_text_for_a_formula(name):
    text = tables.as_csv([{"name": name, "gap": -0.5, "note": f"not {name}"}])
    [row] = csv.DictReader(io.StringIO(text, newline=""))
    assert row == {"name": f"'{name}", "gap": "-0.5", "note": f"not {name}"}
    assert tables.as_csv([{"name": "a\r=1\x1b"}]) == "name\na\\x0d=1\\x1b\n".replace("x0d", "r")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"winner": 1}'])
def test_a_damaged_summary_is_one_that_is_missing(tmp_path, text):
    made_up_table.write(tmp_path)
    (tmp_path / "winner" / "summary.json").write_text(text)
    (tmp_path / "data.json").write_text("[1]")
    scores = (tmp_path / "winner" / "test_scores.npz").read_bytes()
    (tmp_path / "winner" / "test_scores.npz").write_bytes(scores[:-30])
    facts = table_facts.read(tmp_path)
    assert (facts.data, facts.summary, facts.scores) == (None, None, None)
