"""The report's files and words; the page is tested in test_page."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from everypair.experiments import report
from everypair.experiments.commands import app
from everypair.experiments.errors import UserError
from everypair.experiments.plan import Settings, TableFile
from everypair.experiments.report import figures, panels, selection, wording
from everypair.experiments.search import store
from tests.experiments import made_up

PLAIN = Settings()


@pytest.fixture(scope="module")
def few():
    return made_up.records(made_up.grid(), epochs=5)


def shown(records, settings=PLAIN, **more):
    console = Console(file=io.StringIO(), width=140)
    report.show(console, records, settings, **more)
    return console.file.getvalue()


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_writes_every_file_and_nothing_else(few, tmp_path):
    paths = report.write(few, PLAIN, tmp_path / "new")
    pictures = {
        f"{name}.{kind}" for name in ("figure3", "curves", "roc") for kind in ("png", "svg")
    }
    tables = {"report.html", "table2.csv", "figure3.csv", "differences.csv"}
    assert {path.name for path in paths.files} == pictures | tables
    assert {path.name for path in (tmp_path / "new").iterdir()} == pictures | tables
    assert paths.page == tmp_path / "new" / "report.html"
    for path in paths.files:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        if path.suffix == ".svg":
            assert ET.parse(path).getroot().tag.endswith("svg")


def test_a_folder_that_cannot_be_written_is_one_clear_line(few, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"table2.csv could not be written: .* safe in the store"):
        report.write(few, PLAIN, tmp_path / "file", formats=["csv"])


def test_tables_fit_a_terminal_without_cutting_words(few):
    console = Console(file=io.StringIO(), width=80)
    report.show(console, few, PLAIN)
    text = console.file.getvalue()
    assert "…" not in text
    rows = [line.split() for line in text.splitlines() if line.startswith(" 10 % ")]
    # Three selected, three differences, each on a line of its own.
    assert [row[2] for row in rows[:3]] == ["squared", "logistic", "AUCM"]
    assert sum("to" in row for row in rows) == 3


def test_of_many_differences_those_with_the_leader_are_shown():
    losses = ("square", "linear_hinge", "logistic", "weighted_logistic", "aucm", "squared_hinge")
    records = [
        r for k, loss in enumerate(losses) for r in made_up.simple([0.9 - k / 10, 0.8], loss)
    ]
    text = shown(records)
    assert text.count(" to ") == 5
    assert "10 more, without a leader, are on the page" in text


def test_the_same_records_give_the_same_files(few, tmp_path):
    one, two = (report.write(few, PLAIN, tmp_path / k, formats=["svg"]) for k in "ab")
    assert [p.read_bytes() for p in one.files] == [p.read_bytes() for p in two.files]


def test_formats_can_be_chosen(few, tmp_path):
    paths = report.write(few, PLAIN, tmp_path, formats=["csv"])
    assert {path.suffix for path in paths.files} == {".csv"}
    assert paths.page is None
    with pytest.raises(UserError, match=r"formats must be among html.*; got pdf"):
        report.write(few, PLAIN, tmp_path, formats=["pdf"])


def test_tables_hold_the_numbers_of_the_selection(few, tmp_path):
    report.write(few, PLAIN, tmp_path, formats=["csv"])
    summed = selection.summaries(selection.results(few))
    table2 = rows_of(tmp_path / "table2.csv")
    assert [float(row["mean_test_auc"]) for row in table2] == [s.mean for s in summed]
    assert [float(row["median_rate"]) for row in table2] == [s.rate for s in summed]
    chosen = rows_of(tmp_path / "figure3.csv")
    assert len(chosen) == 6 * 3
    assert {row["seed"] for row in chosen} == {"0", "1", "2"}
    gaps = rows_of(tmp_path / "differences.csv")
    expected = selection.differences(summed)
    assert [float(row["low"]) for row in gaps] == [gap.interval[0] for gap in expected]
    assert [row["verdict"] for row in gaps] == [gap.verdict for gap in expected]


def test_one_seed_leaves_spread_and_interval_empty(tmp_path):
    records = made_up.simple([0.7]) + made_up.simple([0.8], "square")
    report.write(records, PLAIN, tmp_path, formats=["csv"])
    assert rows_of(tmp_path / "table2.csv")[0]["sd_test_auc"] == ""
    assert rows_of(tmp_path / "differences.csv")[0]["low"] == ""
    text = shown(records)
    assert "needs two seeds" in text
    assert "cannot say" in text
    assert "±" not in text.partition("\n")[2]


def test_the_terminal_shows_results_ties_losses_and_cost(few):
    text = shown(few)
    for s in selection.summaries(selection.results(few)):
        assert wording.spread(s.mean, s.sd) in text
    assert "tie" in text
    assert "diverged" in text
    assert "total time" in text
    assert "Unfinished" not in text


def test_an_unfinished_grid_says_how_much_is_done(few):
    assert "Unfinished: 108 of 200 trials are done" in shown(few, planned=200)


def test_a_users_table_goes_by_its_name():
    records = made_up.simple([0.7, 0.8], data="table", imratio=0.0)
    text = shown(records, Settings(table=TableFile("somewhere/fraud.csv", "fraud")))
    assert "fraud.csv" in text
    assert "somewhere" not in text


def test_optimisers_are_named_where_a_loss_has_several():
    records = made_up.simple([0.7, 0.8]) + made_up.simple([0.5, 0.61], optimiser="adam")
    study = report.study_of(records, PLAIN)
    [place] = study.standings.values()
    said = wording.standing(place, study.called)
    assert "logistic + Adam" in said.replace("Logistic", "logistic")


def test_nobody_won(tmp_path):
    lost = [
        replace(r, state="diverged", validation_auc=float("nan"), test_auc=float("nan"))
        for r in made_up.simple([0.7, 0.8])
    ]
    paths = report.write(lost, PLAIN, tmp_path)
    assert rows_of(tmp_path / "figure3.csv") == []
    assert (tmp_path / "differences.csv").read_text().startswith("data,imratio,first")
    assert "No trial has a validation AUC" in paths.page.read_text()
    assert "diverged" in shown(lost)


def test_a_study_without_records_is_an_error():
    with pytest.raises(UserError, match="at least one trial that has ended"):
        report.study_of([], PLAIN)


def test_curves_are_means_over_the_seeds_that_are_there():
    records = made_up.records(made_up.grid(seeds=2, losses=("logistic",)), epochs=4)
    s = selection.summaries(selection.results(records))[0]
    first, second = (panels.column(r, "validation_auc") for r in s.chosen)
    assert panels.mean_column(s, "validation_auc")[2] == pytest.approx((first[2] + second[2]) / 2)
    heights = panels.mean_roc(s)
    assert heights[0] == 0
    assert heights[-1] == 1
    # The mean curve has the mean area, but for the coarseness of its points.
    assert sum(heights) / 100 - 0.005 == pytest.approx(s.mean, abs=0.02)


def test_settings_given_with_a_study_replace_its_own(few, tmp_path):
    study = report.study_of(few, PLAIN)
    named = Settings(table=TableFile("fraud.csv", "fraud"))
    assert "fraud.csv" in shown(study, named)
    page = report.write(study, named, tmp_path, formats=["html"]).page
    assert "fraud.csv" in page.read_text()
    assert "Unfinished: 108 of 200" in shown(study, planned=200)
    assert report.study_of(study, PLAIN) is study


@pytest.mark.parametrize("aucs", [(0.77601, 0.77604, 0.77608), (0.5, 1.0), (0.1, 0.1)])
def test_labels_of_an_axis_differ(aucs):
    study = report.study_of(made_up.simple(aucs), PLAIN)
    [axes] = figures.file_results(study).axes
    axes.figure.draw_without_rendering()
    low, high = axes.get_xlim()
    labels = [
        label.get_text()
        for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        if low <= place <= high
    ]
    assert 2 <= len(labels) <= 8
    assert len(set(labels)) == len(labels)


def test_names_with_dollar_signs_are_not_formulas(tmp_path):
    records = made_up.simple([0.7, 0.8], data="table")
    settings = Settings(table=TableFile("a$_b$c.csv", "y"))
    report.write(records, settings, tmp_path, formats=["svg", "png"])
    assert {path.suffix for path in tmp_path.iterdir()} == {".svg", ".png"}
    assert "a$_b$c.csv" in (tmp_path / "figure3.svg").read_text()


@pytest.fixture
def kept(tmp_path):
    """A store with half of a small grid done."""
    losses = ("logistic", "squared_hinge")
    grid = made_up.grid(imratios=(0.1,), seeds=2, losses=losses, batches=(50,))
    with store.open(str(tmp_path / "run"), create=True) as opened:
        opened.prepare(grid, PLAIN)
        for _ in range(len(grid.trials()) // 2):
            claim = opened.claim()
            opened.finish(claim, made_up.record(claim.trial, epochs=3))
    return tmp_path / "run"


def test_the_command_reads_a_store(kept, tmp_path):
    ran = CliRunner().invoke(app, ["report", str(kept)])
    assert ran.exit_code == 0, ran.output
    assert "6 of 12 trials are done" in ran.output
    assert str(kept / "report.html") in ran.output.replace("\n", "")
    assert (kept / "report.html").exists()


def test_the_command_prints_json(kept, tmp_path):
    ran = CliRunner().invoke(app, ["report", str(kept), "--out", str(tmp_path / "out"), "--json"])
    told = json.loads(ran.stdout)
    assert (told["n_trials"], told["n_planned"]) == (6, 12)
    assert {row["loss"] for row in told["selected"]} == {"logistic", "squared_hinge"}
    assert str(tmp_path / "out" / "report.html") in told["files"]
    assert not (kept / "report.html").exists()


def test_the_command_refuses_what_is_no_store(tmp_path):
    ran = CliRunner().invoke(app, ["report", str(tmp_path / "nothing")])
    assert isinstance(ran.exception, UserError)
    assert not (tmp_path / "nothing").exists()
