"""``everypair experiment``: complete runs, interruptions and wrong arguments."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import numpy as np
import pandas as pd
import pytest

from everypair.cli import main
from everypair.experiments.plan import Cell, Record, Trial
from everypair.experiments.search import store
from everypair.experiments.training import saved, winner
from everypair.experiments.training.objectives import OBJECTIVES

TINY = ["--imratio", "0.1", "--seeds", "2", "--batch", "100", "--epochs", "2", "--model", "linear"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 3))
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    frame["kind"] = rng.choice(["u", "v"], 400)
    frame["day"] = np.repeat(np.arange(40), 10)
    frame["fraud"] = np.where(x[:, 0] + rng.standard_normal(400) > 1, "yes", "no")
    path = tmp_path_factory.mktemp("table") / "my.csv"
    frame.to_csv(path, index=False)
    return path


def test_digits_run_to_a_report_and_a_model(tmp_path, capsys):
    command = ["experiment", "digits", *TINY, "--out", str(tmp_path), "--workers", "1", "--json"]
    assert main([*command, "--losses", "squared_hinge,logistic", "--rate", "0.1,0.5"]) == 0
    printed = capsys.readouterr()
    output = json.loads(printed.out)
    assert (output["n_trials"], output["n_planned"]) == (8, 8)
    assert "8 of 8 trials" in printed.err
    assert "Few positives" not in printed.err
    assert (tmp_path / "report.html").is_file()
    assert not (tmp_path / "models").exists()
    model = saved.load(output["model"])
    with store.open(str(tmp_path)) as opened:
        records = opened.records()
    assert model.trial == winner.choose(records)[0].trial
    assert [record.state for record in records] == ["finished"] * 8


def test_finalists_are_trained_on_all_seeds(tmp_path, capsys):
    command = ["experiment", "digits", *TINY, "--out", str(tmp_path), "--workers", "1", "--json"]
    command += ["--losses", "logistic", "--rate", "0.001,0.5", "--finalists", "1"]
    command += ["--schedule", "cosine", "--warm-start", "1"]
    assert main([*command, "--minutes", "0"]) == 75
    stopped = "the time is up. Stage 1 of 2: 0 of 2 trials are finished and kept; the same command"
    assert stopped in capsys.readouterr().err
    assert main([*command, "--minutes", "60", "--mixed", "--together", "8"]) == 0
    assert json.loads(capsys.readouterr().out)["n_trials"] == 3
    with store.open(str(tmp_path)) as opened:
        tried = [(r.trial.cell.seed, r.trial.rate) for r in opened.records()]
        settings = opened.settings
    assert tried == [(0, 0.001), (0, 0.5), (1, 0.5)]
    assert (settings.schedule, settings.warm_start) == ("cosine", 1)
    assert saved.load(tmp_path / "model.pt").trial.rate == 0.5


def test_a_table_run_saves_a_model_that_scores_it(tmp_path, table, capsys):
    out = tmp_path / "run"
    command = ["experiment", "--data", str(table), "--label", "fraud", "--positive", "yes"]
    options = ["--losses", "logistic", "--rate", "1", "--batch", "full", "--seeds", "1"]
    assert main([*command, *options, "--epochs", "20", "--workers", "1", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert f"The best model: {out / 'model.pt'}" in printed.out
    assert " of them positive (fraud = yes)." in printed.err
    assert saved.load(out / "model.pt").settings.table.positive == "yes"
    assert "fraud = yes" in (out / "report.html").read_text()
    assert main(["predict", str(out / "model.pt"), str(table), "--json"]) == 0
    printed = capsys.readouterr()
    scores, seen = (json.loads(printed.out)[name] for name in ("score", "seen"))
    assert seen == pytest.approx(0.8)  # without the test part
    assert "the model was fitted on these rows (about 80% of them)" in printed.err
    fraud = pd.read_csv(table)["fraud"] == "yes"
    assert np.mean(np.asarray(scores)[fraud]) > np.mean(np.asarray(scores)[~fraud])
    table_now = table.read_text()
    try:
        table.write_text(table_now.replace("0.1", "0.2"))
        assert main([*command, *options, "--epochs", "20", "--out", str(out)]) == 2
        assert "other data" in capsys.readouterr().err
    finally:
        table.write_text(table_now)


def test_models_are_compared_on_a_table_and_the_winner_is_kept(tmp_path, table, capsys):
    out = tmp_path / "run"
    command = ["experiment", "table", "--data", str(table), "--label", "fraud", "--out", str(out)]
    command += ["--models", "linear", "--losses", "logistic,pairs", "--workers", "1"]
    assert main([*command, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("everypair experiment: my.csv\n")
    steps = ("Comparing the models.", "Fitting the winner on all rows", "Measuring which columns")
    assert all(step in printed.err for step in steps)  # progress without a terminal
    output = json.loads(printed.out)
    assert output["n_trials"] == 4
    assert output["model"] == str(out / "model.zip")
    names = [one["name"] for one in output["contenders"]]
    assert sorted(names) == ["linear logistic", "linear pairs"]
    assert output["winner"]["name"] == names[0]
    assert (out / "report.html").is_file()
    before = (out / "model.zip").stat().st_mtime_ns
    assert main(["report", str(out), "--out", str(tmp_path / "elsewhere")]) == 0
    assert f"The winner is {names[0]}" in " ".join(capsys.readouterr().out.split())
    assert main(command) == 0  # finished: nothing is trained again
    text = " ".join(capsys.readouterr().out.split())
    assert f"The winner is {names[0]}: test AUC" in text
    assert (out / "model.zip").stat().st_mtime_ns == before
    shuffled = tmp_path / "shuffled.parquet"
    pd.read_csv(table).sample(frac=0.5, random_state=0).to_parquet(shuffled)
    assert main(["predict", str(out), str(shuffled)]) == 0
    assert "Warning: the model was fitted on these rows (about 100%" in capsys.readouterr().err
    new = tmp_path / "new.csv"
    (pd.read_csv(table).drop(columns=["kind", "fraud"]) + 0.5).assign(kind="u").to_csv(new)
    assert main(["predict", str(out), str(new)]) == 0
    assert "Warning" not in capsys.readouterr().err
    assert main(["predict", str(out), str(table), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    scores, probabilities = np.asarray(printed["score"]), np.asarray(printed["probability"])
    fraud = pd.read_csv(table)["fraud"] == "yes"
    assert scores[fraud].mean() > scores[~fraud].mean()
    assert probabilities.mean() == pytest.approx(fraud.mean(), abs=0.05)
    scored = tmp_path / "scored.csv"
    columns = ["--out", str(scored), "--column", "risk"]
    assert main(["predict", str(out), str(table), *columns]) == 0
    written = pd.read_csv(scored)
    np.testing.assert_allclose(written["risk"], scores)
    np.testing.assert_allclose(written["risk_probability"], probabilities)
    again = [str(out), str(scored), "--out", str(tmp_path / "twice.csv"), "--column", "risk"]
    assert main(["predict", *again]) == 2
    assert "has a column 'risk' already" in capsys.readouterr().err
    assert main(["predict", str(table), str(out)]) == 2
    assert "the order is: everypair predict MODEL FILE" in capsys.readouterr().err
    data = bytearray((out / "model.zip").read_bytes())
    data[300:340] = bytes(40)  # inside the compressed description
    (out / "model.zip").write_bytes(data)
    assert main(["predict", str(out), str(table)]) == 2
    assert "model.zip is a damaged zip archive (" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["digits", "--models", "linear"], "goes with the preset table"),
        (["table", "--data", "TABLE", "--label", "fraud", "--models", "gbm"], "model must be one"),
        (["table", "--data", "TABLE", "--label", "fraud", "--losses", "hinge"], "must be among"),
        (
            ["table", "--data", "TABLE", "--label", "fraud", "--models", "mlp", "--rate", "1"],
            "--models and --rate exclude each other",
        ),
        (["digit"], "Did you mean digits?"),
        (["TABLE", "--label", "fraud"], "everypair experiment --data"),
        (["table", "--data", "TABLE", "--label", "fraud", "--model", "xgboost"], "--models x"),
        (["table"], "--data FILE"),
        (["table", "--data", "TABLE"], "--label COLUMN"),
        (["digits", "--label", "x"], "goes with the preset table"),
        (["table", "--data", "nowhere.csv", "--label", "x"], "nowhere.csv"),
        (["table", "--data", "TABLE", "--label", "fruad"], "fraud"),
        (["digits", "--losses", "hinge"], "loss must be one of"),
        (["digits", "--losses", "sqare"], "Did you mean square?"),
        (["digits", "--grid", "paper", "--losses", "square"], "no rates are known for the loss"),
        (["digits", "--protocol", "paper", "--scores", "raw"], "ends in a sigmoid"),
        (["table", "--data", ".", "--label", "x"], "is a folder"),
        (["digits", "--epochs", "many"], "everypair experiment --help"),
        (["digits", "--losses", "hinge", "--rate", "1"], "loss must be one of"),
        (["digits", "--model", "resnet"], "resnet20"),
        (["digits", "--optimiser", "lbfgs", "--batch", "50"], "--batch full"),
        (["digits", "--rate", "fast"], "--rate must be numbers"),
        (["digits", "--rate", "-1"], "each greater than 0"),
        (["digits", "--rate", "square=1"], "names a loss that is not run"),
        (["digits", "--imratio", "1.5"], "less than 1"),
        (["digits", "--imratio", "0.0001"], "positives of"),
        (["digits", "--batch", "1.5"], "each a whole number, or full"),
        (["digits", "--trials", "9"], "--sampler tpe"),
        (["digits", "--sampler", "tpe", "--trials", "2", "--finalists", "1"], "exclude each other"),
        (["digits", "--per-batch"], "--per-batch needs --finalists"),
        (["digits", "--warm-start", "50"], "less than the 50 epochs"),
        (["digits", "--device", "abacus"], "--device abacus"),
    ],
)
def test_a_wrong_argument_is_one_line_and_leaves_no_files(arguments, text, table, tmp_path, capsys):
    out = tmp_path / "run"
    given = [str(table) if word == "TABLE" else word for word in arguments]
    assert main(["experiment", *given, "--out", str(out)]) == 2
    lines = capsys.readouterr().err.splitlines()  # the first line may name the data
    errors = [line for line in lines if not line.startswith("everypair experiment: ")]
    assert len(errors) == 1
    assert text in errors[0]
    assert not out.exists()


def test_few_positives_for_validation_give_a_warning(tmp_path, capsys):
    few = ["--imratio", "0.1,0.01", "--seeds", "1", "--batch", "full", "--epochs", "1"]
    command = ["experiment", "digits", *few, "--losses", "logistic", "--rate", "0.1", "--json"]
    assert main([*command, "--minutes", "0", "--out", str(tmp_path)]) == 75  # nothing is trained
    assert "Few positives for validation: 1 at imratio 0.01." in capsys.readouterr().err


def test_other_settings_need_another_folder(tmp_path, capsys):
    command = ["experiment", "digits", *TINY, "--losses", "logistic", "--rate", "0.1"]
    with store.open(str(tmp_path), create=True) as opened:
        from everypair.experiments.commands._options import planned

        opened.prepare(*planned(preset="digits", seeds=1, epochs=9))
    assert main([*command, "--out", str(tmp_path)]) == 2
    assert "epochs 9 (now 2)" in capsys.readouterr().err


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_explains_how_to_continue(tmp_path, capsys):
    def press():
        until = time.monotonic() + 60
        while not counts(tmp_path).running and time.monotonic() < until:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    command = ["experiment", "digits", "--losses", "logistic", "--epochs", "100000"]
    assert main([*command, "--workers", "1", "--out", str(tmp_path)]) == 130
    text = capsys.readouterr().err
    assert "0 of 36 trials are finished and kept; the same command continues." in text
    assert counts(tmp_path) == store.Counts(waiting=36, running=0, finished=0)


def counts(folder):
    try:
        with store.open(str(folder)) as opened:
            return opened.counts()
    except Exception:  # the store is being created
        return store.Counts(0, 0, 0)


def made_up(rate, seed, value, imratio=0.1):
    return Record(
        Trial(Cell("digits", imratio, "square", "sgd", seed), 50, rate),
        "finished",
        {},
        validation_auc=value,
    )


def test_the_winner_has_the_greatest_mean_over_seeds(tmp_path):
    records = [
        made_up(0.1, 0, 0.99),  # the greatest value, but not the greatest mean
        made_up(0.1, 1, 0.50),
        made_up(1.0, 0, 0.80),
        made_up(1.0, 1, 0.81),
        made_up(9.0, 0, 0.95),  # has not run with all seeds
        made_up(9.0, 1, float("nan")),
    ]
    assert winner.choose(records) == [records[3], records[2]]
    paths = [winner.path_of(tmp_path, record.trial) for record in records]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_text(path.name)
    winner.BestSeeds(tmp_path, records)
    assert [path.exists() for path in paths] == [True, False, False, True, True, False]
    assert winner.keep_winner(tmp_path, records) == tmp_path / "model.pt"
    assert (tmp_path / "model.pt").read_text() == paths[3].name
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_the_winner_is_chosen_at_the_imratio_with_most_positives():
    mild, severe = made_up(0.1, 0, 0.8, imratio=0.1), made_up(0.1, 0, 0.9, imratio=0.01)
    untouched = made_up(0.1, 0, 0.7, imratio=0.0)
    assert winner.choose([severe, mild]) == [mild]
    assert winner.choose([severe, mild, untouched]) == [untouched]


def test_the_command_fails_if_every_trial_fails(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("EVERYPAIR_EXTENSIONS", str(tmp_path / "broken_loss.py"))
    (tmp_path / "broken_loss.py").write_text(
        "from everypair.experiments import OBJECTIVES, Objective\n"
        "def broken(settings, labels): raise RuntimeError('out of cheese')\n"
        "OBJECTIVES['broken'] = Objective(broken)\n"
    )
    command = ["experiment", "digits", *TINY, "--losses", "broken", "--rate", "0.1"]
    try:
        assert main([*command, "--out", str(tmp_path / "run"), "--workers", "1"]) == 1
    finally:
        OBJECTIVES.pop("broken", None)
    text = capsys.readouterr().err
    assert "trials failed (RuntimeError: out of cheese" in text
    assert "The same command tries them again." in text


def test_a_model_folder_that_cannot_be_written_ends_the_run(tmp_path, capsys):
    (tmp_path / "models").write_text("in the way")
    command = ["experiment", "digits", *TINY, "--losses", "logistic", "--rate", "0.1"]
    assert main([*command, "--out", str(tmp_path), "--workers", "1"]) == 2
    assert "could not be written" in capsys.readouterr().err
    assert counts(tmp_path).finished == 0


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        assert main(["experiment", "digits", *TINY, "--out", str(out)]) == 2
        assert f"--out must be a folder; {out} cannot be one" in capsys.readouterr().err


def test_no_records_give_no_winner(tmp_path):
    assert winner.keep_winner(tmp_path, []) is None
