"""Evaluation of a file of predictions: columns, measures and error messages."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import everypair as ep
from everypair import cli
from everypair.experiments.errors import UserError
from everypair.experiments.figures import evaluation, roc_curve


def predictions(scores, positive, weights=None, groups=None):
    """Return rows as if they had been read from a file."""
    rows = ep.PairAccumulator()
    rows.add(scores, positive, weights, groups)
    return evaluation.Predictions(rows, {}, None if groups is None else len(np.unique(groups)))


@pytest.fixture
def frame():
    random = np.random.default_rng(5)
    label = random.random(300) < 0.3
    return pd.DataFrame(
        {
            "score": np.round(random.normal(size=300) + label, 2),
            "label": label.astype(int),
            "heavy": random.integers(0, 4, 300),
            "patient": random.choice(["a", "b", "c"], 300),
        }
    )


@pytest.fixture
def file(frame, tmp_path):
    frame.to_csv(tmp_path / "scored.csv", index=False)
    return tmp_path / "scored.csv"


def test_agrees_with_the_library(file, frame, capsys):
    line = ["evaluate", str(file), "--weights", "heavy", "--group", "patient", "--margin", "0.5"]
    assert cli.main([*line, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    options = {"weights": frame.heavy, "groups": frame.patient}
    assert output["auc"] == ep.auc(frame.score, frame.label, **options)
    assert list(output["losses"]) == list(ep.surrogates.names())
    for name, loss in output["losses"].items():
        expected = ep.naive.pair_loss(
            frame.score, frame.label, surrogate=name, margin=0.5, **options
        )
        assert loss == pytest.approx(expected, rel=1e-9)
    assert (output["rows"], output["groups"]) == (300, 3)
    assert output["positives"] + output["negatives"] == 300
    assert output["columns"]["group"] == "patient"


def test_parquet_and_csv_give_the_same_result(file, frame, tmp_path):
    frame.to_parquet(tmp_path / "scored.parquet")
    by_csv, by_parquet = (
        evaluation.evaluate(evaluation.read(path)) for path in (file, tmp_path / "scored.parquet")
    )
    assert by_csv == by_parquet


def test_shows_a_table(file, capsys):
    assert cli.main(["evaluate", str(file)]) == 0
    text = capsys.readouterr().out
    assert "300 rows" in text
    assert "AUC" in text
    assert all(name in text for name in ep.surrogates.names())


def test_the_interval_is_that_of_delong(file, frame, capsys):
    assert cli.main(["evaluate", str(file), "--weights", "heavy", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    expected = ep.delong(frame.score, frame.label, weights=frame.heavy)
    assert output["auc_interval"] == [expected.low, expected.high]
    assert cli.main(["evaluate", str(file)]) == 0
    auc, _, low, high = ep.delong(frame.score, frame.label)
    assert low < auc < high
    assert f"{low:.4f} to {high:.4f}" in capsys.readouterr().out


def test_no_interval_for_groups_and_single_rows(frame):
    scores, positive = frame.score.to_numpy(), frame.label.to_numpy() == 1
    grouped = predictions(scores, positive, groups=frame.patient)
    assert evaluation.evaluate(grouped).auc_interval is None
    one = np.where(positive, np.cumsum(positive) == 1, 1)
    assert evaluation.evaluate(predictions(scores, positive, one)).auc_interval is None
    kept = one == 1
    single = predictions(scores[kept], positive[kept])
    assert evaluation.evaluate(single).auc_interval is None


@pytest.mark.parametrize("negative", [0, 1])  # the rows begin with either class
def test_two_models_are_compared_by_a_paired_test(frame, tmp_path, capsys, negative):
    order = np.argsort(frame.label.to_numpy() == negative, kind="stable")
    rows = frame.assign(old=-frame.score.to_numpy() + frame.index % 7, label=frame.label).iloc[
        order
    ]
    path = tmp_path / "two.csv"
    rows.to_csv(path, index=False)
    line = ["evaluate", str(path), "--compare", "old", "--weights", "heavy"]
    assert cli.main([*line, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    expected = ep.delong_test(rows.score, rows.old, rows.label, weights=rows.heavy)
    found = output["comparison"]
    assert output["auc"] == pytest.approx(expected.auc_a, rel=1e-12)
    assert (found["auc"], found["difference"]) == (expected.auc_b, expected.difference)
    assert found["interval"] == [expected.low, expected.high]
    assert found["p_value"] == expected.p_value
    assert cli.main(line) == 0
    text = capsys.readouterr().out
    assert "AUC of old" in text
    assert f"{expected.difference:+.6f}" in text


def test_two_models_are_compared_by_their_concordance(frame, tmp_path, capsys):
    path = tmp_path / "two.csv"
    rows = frame.assign(old=-frame.score, target=frame.index % 11)
    rows.to_csv(path, index=False)
    line = ["evaluate", str(path), "--compare", "old", "--pairs", "ordered", "--labels", "target"]
    assert cli.main([*line, "--json"]) == 0
    expected = ep.delong_test(rows.score, rows.old, rows.target, pairs="ordered")
    assert json.loads(capsys.readouterr().out)["comparison"]["p_value"] == expected.p_value


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--compare", "score"], "--compare must name another column than --scores"),
        (["--compare", "heavy", "--group", "patient"], "--compare must be used without"),
        (["--compare", "heavy", "--bounded"], "--compare must be used without"),
        (["--compare", "heavi"], "did you mean 'heavy'?"),
    ],
)
def test_comparisons_that_cannot_be_made(file, capsys, options, text):
    assert cli.main(["evaluate", str(file), *options]) == 2
    assert text in capsys.readouterr().err


def test_the_output_mentions_groups(file, capsys):
    assert cli.main(["evaluate", str(file), "--group", "patient"]) == 0
    text = capsys.readouterr().out
    assert "3 groups" in text
    assert "inside groups" in text


def test_means_over_groups(file, frame, capsys):
    assert cli.main(["evaluate", str(file), "--group", "patient", "--json"]) == 0
    means = json.loads(capsys.readouterr().out)["group_aucs"]
    for average in ("groups", "rows"):
        expected = ep.auc(frame.score, frame.label, groups=frame.patient, average=average)
        assert means[average] == expected
    assert cli.main(["evaluate", str(file), "--group", "patient"]) == 0
    assert f"{means['rows']:.6f}" in capsys.readouterr().out


def test_real_targets_and_survival_times(frame, tmp_path, capsys):
    path = tmp_path / "times.csv"
    table = frame.drop(columns="label").assign(time=frame.index % 40 + 1, died=frame.label)
    table.to_csv(path, index=False)
    line = ["evaluate", str(path), "--pairs", "survival"]
    assert cli.main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    labels = (table.time, table.died)
    assert found["auc"] == ep.auc(table.score, labels, pairs="survival")
    expected = ep.pair_loss(table.score, labels, pairs="survival", surrogate="logistic")
    assert found["losses"]["logistic"] == expected
    assert found["positives"] is None
    _, _, low, high = ep.delong(table.score, labels, pairs="survival")
    assert found["auc_interval"] == [low, high]
    assert cli.main(line) == 0
    text = capsys.readouterr().out
    assert f"{low:.4f} to {high:.4f}" in text
    assert "times from time, events from died" in text
    assert "concordance index" in text
    assert cli.main(["evaluate", str(path), "--pairs", "ordered", "--labels", "time"]) == 0
    concordance = ep.auc(table.score, table.time, pairs="ordered")
    assert f"{concordance:.6f}" in capsys.readouterr().out


def test_a_time_column_comes_before_a_label_column(frame, tmp_path, capsys):
    path = tmp_path / "both.csv"
    frame.assign(time=frame.index % 40 + 1, event=1).to_csv(path, index=False)
    assert cli.main(["evaluate", str(path), "--pairs", "survival"]) == 0
    assert "times from time" in capsys.readouterr().out


def test_the_error_about_grades_names_the_option_for_them(frame, tmp_path, capsys):
    path = tmp_path / "grades.csv"
    frame.assign(label=frame.index % 3).to_csv(path, index=False)
    assert cli.main(["evaluate", str(path)]) == 2
    assert "use --pairs ordered" in capsys.readouterr().err
    frame.assign(label=[f"kind {i % 3}" for i in frame.index]).to_csv(path, index=False)
    assert cli.main(["evaluate", str(path)]) == 2
    assert "--pairs ordered" not in capsys.readouterr().err


def test_one_positive_row_has_no_interval(frame, tmp_path, capsys):
    path = tmp_path / "one.csv"
    frame.assign(label=(frame.index == 5).astype(int)).to_csv(path, index=False)
    assert cli.main(["evaluate", str(path)]) == 0
    assert "needs two rows of each class" in capsys.readouterr().out


def test_events_may_be_words(frame, tmp_path):
    died = np.where(frame.label == 1, "Yes", "no")
    table = pd.DataFrame({"score": frame.score, "time": frame.index % 40, "died": died})
    table.to_csv(tmp_path / "p.csv")
    found = evaluation.evaluate(evaluation.read(tmp_path / "p.csv", pairs="survival"))
    assert found.auc == ep.auc(frame.score, (frame.index % 40, frame.label), pairs="survival")


def test_without_events_the_number_of_censored_times_is_shown(frame, tmp_path, capsys):
    table = pd.DataFrame({"score": frame.score, "time": frame.index + 1})
    table.to_csv(tmp_path / "p.csv")
    assert cli.main(["evaluate", str(tmp_path / "p.csv"), "--pairs", "survival", "--json"]) == 0
    assert "0 negative times are censored, and all others are events" in capsys.readouterr().err


def test_negative_times_are_censored_without_events(frame, tmp_path):
    times = np.where(frame.label == 1, 1.0, -1.0) * (frame.index + 1)
    pd.DataFrame({"score": frame.score, "time": times}).to_csv(tmp_path / "p.csv")
    found = evaluation.evaluate(evaluation.read(tmp_path / "p.csv", pairs="survival"))
    assert found.auc == ep.auc(frame.score, times, pairs="survival")


def test_writes_the_roc_curve(file, frame, tmp_path, capsys):
    assert cli.main(["evaluate", str(file), "--out", str(tmp_path / "curve")]) == 0
    assert "curve.csv" in capsys.readouterr().out.replace("\n", "")
    rows = pd.read_csv(tmp_path / "curve.csv")
    expected = ep.roc_curve(frame.score, frame.label)
    for name, column in zip(rows, expected, strict=True):
        np.testing.assert_array_equal(rows[name], column)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "curve.svg").read_text().startswith("<?xml")


def test_a_long_curve_is_drawn_with_few_points():
    random = np.random.default_rng(0)
    scored = predictions(random.normal(size=20_000), random.random(20_000) < 0.5)
    found = evaluation.evaluate(scored)
    curve = roc_curve.curve(scored)
    (axes,) = roc_curve.draw(curve, found).axes
    fpr, tpr = axes.lines[1].get_data()
    assert len(fpr) <= roc_curve._POINTS_DRAWN
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert np.trapezoid(tpr, fpr) == pytest.approx(found.auc, abs=1e-3)


def test_the_figure_notes_that_the_curve_ignores_groups(frame):
    scored = predictions(frame.score.to_numpy(), frame.label == 1, groups=frame.patient)
    found = evaluation.evaluate(scored)
    (axes,) = roc_curve.draw(ep.roc_curve(frame.score, frame.label), found).axes
    assert "inside groups; the curve is over all rows" in axes.get_title()


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr("everypair.experiments.data._chunks._ROWS", 64)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("kind", ["parquet", "csv", "arrow", "stream"])
def test_any_format_is_read_in_chunks(frame, tmp_path, kind):
    expected = evaluation.evaluate(
        predictions(frame.score, frame.label, frame.heavy, frame.patient)
    )
    frame = frame.assign(label=np.where(frame.label == 1, "yes", "no"))
    for i, part in enumerate(np.array_split(np.arange(300), 3)):
        _write(frame.iloc[part], tmp_path / f"part-{i}.{kind}")
    read = []
    options = {"weights": "heavy", "group": "patient", "advance": read.append}
    found = evaluation.read(tmp_path / f"part-*.{kind}", **options)
    assert evaluation.evaluate(found) == expected
    assert found.columns["positive"] == "label = yes"
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert sum(read) == pytest.approx(size)


def _write(frame, path):
    table = pa.Table.from_pandas(frame, preserve_index=False)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        make = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as file, make(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=40)


@pytest.mark.usefixtures("small_chunks")
def test_rows_of_errors_count_from_the_start_of_the_file(frame, tmp_path):
    for column, value, text in (
        ("score", np.nan, "got nothing in row 201"),
        ("label", 2, "in row 201, '2'"),
        ("patient", None, "got nothing in row 201"),
    ):
        bad = frame.astype({"score": float, "label": int})
        bad.loc[200, column] = value
        bad.to_csv(tmp_path / "p.csv", index=False)
        with pytest.raises(UserError, match=text):
            evaluation.read(tmp_path / "p.csv", group="patient")


@pytest.mark.usefixtures("small_chunks")
def test_labels_of_another_type_in_a_later_chunk_are_the_same(frame, tmp_path):
    text = frame[["score", "label"]].astype(str)
    text.loc[200:, "label"] += ".0"
    text.to_csv(tmp_path / "p.csv", index=False)
    assert evaluation.evaluate(evaluation.read(tmp_path / "p.csv")).positives == frame.label.sum()


def test_one_label_is_compared_with_all_others(frame, tmp_path):
    labels = np.where(frame.label == 1, "bad", np.where(frame.score > 0, "good", "fair"))
    frame.assign(label=labels).to_csv(tmp_path / "p.csv", index=False)
    found = evaluation.evaluate(evaluation.read(tmp_path / "p.csv", positive="bad"))
    assert found.auc == ep.auc(frame.score, frame.label)
    with pytest.raises(UserError, match="has no value 'worse'; it has"):
        evaluation.read(tmp_path / "p.csv", positive="worse")
    with pytest.raises(UserError, match="Name the positive one with --positive"):
        evaluation.read(tmp_path / "p.csv")


def test_an_unknown_loss_is_refused_by_the_name_of_the_option(file, capsys):
    assert cli.main(["evaluate", str(file), "--loss", "squared_hing"]) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert "--loss must be one of" in text
    assert "Did you mean squared_hinge?" in text


def test_results_by_group(file, frame, capsys):
    line = ["evaluate", str(file), "--group", "patient", "--by-group", "--loss", "square"]
    assert cli.main([*line, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert list(output["losses"]) == ["square"]
    assert list(output["by_group"]) == ["a", "b", "c"]
    for patient, found in output["by_group"].items():
        rows = frame[frame.patient == patient]
        assert found["auc"] == ep.auc(rows.score, rows.label)
        assert found["rows"] == len(rows)
    assert cli.main(line) == 0
    assert "95 % interval" in capsys.readouterr().out
    assert cli.main(["evaluate", str(file), "--by-group"]) == 2
    assert "needs --group" in capsys.readouterr().err


def test_bounded_results_show_their_errors(file, frame, capsys):
    assert cli.main(["evaluate", str(file), "--bounded", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert abs(output["auc"] - ep.auc(frame.score, frame.label)) <= output["auc_bound"]
    assert list(output["loss_bounds"]) == ["square", "squared_hinge", "linear_hinge", "huber_hinge"]
    assert cli.main(["evaluate", str(file), "--bounded"]) == 0
    assert "error at most" in capsys.readouterr().out
    assert cli.main(["evaluate", str(file)]) == 0
    assert "error at most" not in capsys.readouterr().out
    for options in (["--weights", "heavy"], ["--group", "patient"], ["--out", "roc"]):
        assert cli.main(["evaluate", str(file), "--bounded", *options]) == 2
        assert "--bounded must be used without" in capsys.readouterr().err


def test_a_pattern_without_files_is_refused(tmp_path, capsys):
    assert cli.main(["evaluate", str(tmp_path / "*.parquet")]) == 2
    assert "no file matches" in capsys.readouterr().err


def test_large_files_get_one_loss(file, monkeypatch, capsys):
    monkeypatch.setattr(evaluation, "ALL_LOSSES_UP_TO", 100)
    assert cli.main(["evaluate", str(file)]) == 0
    text = capsys.readouterr().out
    assert "squared_hinge" in text
    assert "logistic" not in text
    assert "--loss NAME" in text


@pytest.mark.parametrize(("scores", "labels"), [("Score", "LABEL"), ("y_pred", "y_true")])
def test_recognises_columns_by_their_names(frame, tmp_path, scores, labels):
    frame.rename(columns={"score": scores, "label": labels}).to_csv(tmp_path / "p.csv")
    read = evaluation.read(tmp_path / "p.csv")
    assert (read.columns["scores"], read.columns["labels"]) == (scores, labels)


def test_labels_may_be_words(frame, tmp_path):
    frame["label"] = np.where(frame.label == 1, "ill", "well")
    frame.to_csv(tmp_path / "p.csv")
    rarer, other = (
        evaluation.evaluate(evaluation.read(tmp_path / "p.csv", positive=positive))
        for positive in (None, "well")
    )
    assert rarer.auc == pytest.approx(1.0 - other.auc)
    assert rarer.positives == other.negatives == (frame.label == "ill").sum()


def test_whole_numbers_and_booleans_are_scores(frame, tmp_path):
    frame.assign(score=frame.score > 0).to_csv(tmp_path / "p.csv")
    assert evaluation.read(tmp_path / "p.csv").rows.rows().scores.dtype == np.float64


@pytest.mark.parametrize(
    ("change", "options", "text"),
    [
        ({}, {"scores": "scoer"}, "did you mean 'score'"),
        ({"score": "abc"}, {}, "got 'abc' in row 1."),
        ({"score": None}, {}, "got nothing in row 1"),
        ({"patient": None}, {"group": "patient"}, "got nothing in row 1"),
        ({"label": 1}, {}, "two values"),
        ({"prediction": 1.0}, {}, "several columns have a usual name"),
    ],
)
def test_errors_in_a_file_are_explained(frame, tmp_path, change, options, text):
    frame.assign(**change).to_csv(tmp_path / "p.csv", index=False)
    with pytest.raises(UserError) as raised:
        evaluation.read(tmp_path / "p.csv", **options)
    assert text in str(raised.value)
    assert "p.csv" in str(raised.value)


@pytest.mark.parametrize("role", ["score", "label"])
def test_whole_numbers_that_float64_does_not_hold_are_refused(frame, tmp_path, role):
    path = tmp_path / "long.csv"
    frame.assign(**{role: frame.index.to_numpy() + 2**53}).to_csv(path, index=False)
    with pytest.raises(UserError, match=r"float64 holds.* got '9007199254740993' in row 2"):
        evaluation.evaluate(evaluation.read(path, pairs="ordered"))


def test_scores_are_read_from_a_file_with_scores_and_probabilities(frame, tmp_path):
    frame.assign(probability=0.5).to_csv(tmp_path / "p.csv", index=False)
    assert evaluation.read(tmp_path / "p.csv").columns["scores"] == "score"


def test_columns_without_a_usual_name_must_be_given(frame, tmp_path):
    frame.rename(columns={"score": "z"}).to_csv(tmp_path / "p.csv", index=False)
    with pytest.raises(
        UserError, match="--scores must name a column, because no column has a usual name"
    ):
        evaluation.read(tmp_path / "p.csv")


@pytest.mark.parametrize(
    ("change", "options", "text"),
    [
        ({"score": "inf"}, [], "must hold a finite number in every row; got 'inf' in row 1"),
        ({"heavy": -1}, ["--weights", "heavy"], "weights must"),
        ({"heavy": range(300)}, ["--group", "heavy"], "both classes in at least one group"),
        ({}, ["--margin", "inf"], "margin must be"),
        ({}, ["--out", "roc.pdf"], "--out must end in"),
        ({}, ["--out", "roc", "--pairs", "ordered"], "has no ROC curve"),
        ({}, ["--events", "label"], "--events must come with --pairs survival"),
        (
            {"time": 1, "event": 2},
            ["--pairs", "survival", "--labels", "time"],
            "yes (an event) or 0",
        ),
    ],
)
def test_wrong_arguments_give_one_line(frame, tmp_path, capsys, change, options, text):
    frame.assign(**change).to_csv(tmp_path / "p.csv", index=False)
    assert cli.main(["evaluate", str(tmp_path / "p.csv"), *options]) == 2
    message = capsys.readouterr().err
    assert text in message
    assert message.count("\n") == 1
