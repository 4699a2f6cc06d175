"""Saved models and `everypair predict` give new rows the scores of the training."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import everypair as ep
from everypair.cli import main
from everypair.experiments.data import sources, splits
from everypair.experiments.errors import UserError
from everypair.experiments.plan import Cell, Settings, TableFile, Trial
from everypair.experiments.training import models, saved
from everypair.experiments.training.trial import train

DIGITS = Trial(Cell("digits", 0.1, "squared_hinge", "sgd", 0), 50, 0.1)


def save_untrained(path, shape, *, model="linear", **more):
    state = models.build(model, shape, sigmoid=False, seed=0).state_dict()
    more = {"settings": Settings(model=model), "trial": DIGITS, "input_shape": shape, **more}
    saved.save(path, model_state=state, **more)
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table with every kind of column, from which the class can be predicted."""
    rng = np.random.default_rng(0)
    fraud = rng.random(400) < 0.3
    amount = rng.standard_normal(400) + 2.0 * fraud
    amount[::17] = np.nan
    town = np.where(rng.random(400) < 0.5, "A", np.where(fraud, "B", "C"))
    frame = pd.DataFrame({"id": [f"n{i}" for i in range(400)], "amount": amount, "town": town})
    path = tmp_path_factory.mktemp("table") / "my.csv"
    frame.assign(fraud=np.where(fraud, "yes", "no")).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def trained(table, tmp_path_factory):
    """Train on the table and save the best epoch, as an experiment does."""
    file = TableFile(str(table), "fraud", positive="yes")
    settings = Settings(model="mlp", epochs=3, table=file)
    split = splits.split(sources.load("table", table=file), imratio=0, seed=0, protocol="corrected")
    trial = Trial(Cell("table", 0, "squared_hinge", "sgd", 0), 50, 0.05)
    record, state = train(trial, settings, split)
    path = tmp_path_factory.mktemp("model") / "model.pt"
    saved.save(
        path,
        model_state=state,
        settings=settings,
        trial=trial,
        encoder=split.encoder,
        validation_auc=record.validation_auc,
        notes={"positive": "fraud = yes"},
    )
    return path, split, record


def test_a_loaded_model_equals_the_saved_one(trained):
    path, split, record = trained
    model = saved.load(path)
    assert model.encoder == split.encoder
    assert model.trial == record.trial
    assert model.settings.table.label == "fraud"
    assert model.validation_auc == record.validation_auc
    assert model.threshold is None
    assert model.notes == {"positive": "fraud = yes"}
    assert model.input_shape == (len(split.encoder.names),)


def test_a_model_without_its_rows_recognises_none(trained, table, tmp_path):
    plain = torch.load(trained[0], weights_only=True)
    del plain["seen"]  # as in models of older versions
    torch.save(plain, tmp_path / "model.pt")
    model = saved.load(tmp_path / "model.pt")
    assert model.seen.share(model.encoder.transform(pd.read_csv(table))) == 0.0


def test_new_rows_get_the_scores_of_the_training(trained, table):
    path, split, record = trained
    model = saved.load(path)
    scores = model.score(table)
    assert scores.shape == (400,)
    frame = pd.read_csv(table)
    assert np.array_equal(model.score(frame.drop(columns="fraud")), scores)
    assert np.array_equal(model.score(frame[::-1]), scores[::-1])
    assert ep.auc(scores, frame["fraud"] == "yes") > 0.8
    with torch.no_grad():
        again = model._network(split.test.inputs)
    assert ep.auc(again.numpy(), split.test.labels.numpy()) == pytest.approx(record.test_auc)


def test_loading_needs_no_pickle(trained):
    assert torch.load(trained[0], weights_only=True)["format"] == "everypair model"


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 nonsense", b"plain text", b"amount,fraud\n1,AT,0\n2,BE,1\n", None]
)
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "model.pt"
    if content is None:
        torch.save({"weights": torch.zeros(1)}, path)
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match="is not a model that an experiment saved"):
        saved.load(path)
    with pytest.raises(UserError, match="no such file"):
        saved.load(tmp_path / "none.pt")


def test_a_model_of_another_version_is_refused(trained, tmp_path):
    plain = torch.load(trained[0], weights_only=True)
    torch.save({**plain, "version": 99}, tmp_path / "model.pt")
    with pytest.raises(UserError, match="model of version 99, and this everypair reads version 1"):
        saved.load(tmp_path / "model.pt")


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = save_untrained(tmp_path / "model.pt", (1, 8, 8))
    before = path.read_bytes()

    def full(plain, file):
        file.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space"):
        save_untrained(path, (1, 8, 8))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]


def test_the_shape_of_images_is_required(tmp_path):
    with pytest.raises(ValueError, match="input_shape"):
        save_untrained(tmp_path / "m.pt", (1, 8, 8), input_shape=None)


def test_images_are_scored_from_arrays_and_files(tmp_path):
    digits = sources.load("digits").inputs[:5]
    model = saved.load(save_untrained(tmp_path / "digits.pt", (1, 8, 8), model="mlp"))
    np.save(tmp_path / "new.npy", digits)
    assert np.array_equal(model.score(digits), model.score(tmp_path / "new.npy"))
    assert model.score(digits[:0]).shape == (0,)

    buffer = io.BytesIO()
    Image.new("RGB", (16, 16), (9, 9, 9)).save(buffer, "PNG")
    path = tmp_path / "new.parquet"
    pq.write_table(pa.table({"image": [buffer.getvalue()] * 3}), path)
    colour = saved.load(save_untrained(tmp_path / "colour.pt", (3, 16, 16)))
    scores = colour.score(path)
    assert scores.tolist() == colour.score(np.full((3, 3, 16, 16), 9, np.uint8)).tolist()


def test_rows_of_another_shape_or_type_are_refused(trained, tmp_path):
    model = saved.load(save_untrained(tmp_path / "digits.pt", (1, 8, 8)))
    for wrong in (np.zeros((2, 1, 9, 9), np.uint8), np.zeros((2, 1, 8, 8), np.float32)):
        with pytest.raises(UserError, match=r"rows of shape \(1, 8, 8\) and type uint8"):
            model.score(wrong)
    (tmp_path / "bad.npy").write_bytes(b"no array")
    for name, message in (("bad.npy", "as a NumPy array"), ("none.npy", "no such file")):
        with pytest.raises(UserError, match=message):
            model.score(tmp_path / name)
    with pytest.raises(UserError, match="got an array"):
        saved.load(trained[0]).score(np.zeros((2, 3), np.float32))
    features = saved.load(save_untrained(tmp_path / "features.pt", (3,)))
    assert features.score(np.zeros((2, 3))).shape == (2,)


def test_predict_prints_row_and_score(trained, table, capsys):
    assert main(["predict", str(trained[0]), str(table)]) == 0
    found = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert list(found.columns) == ["row", "score"]
    assert found["row"].tolist() == list(range(1, 401))
    assert np.array_equal(found["score"].to_numpy(np.float32), saved.load(trained[0]).score(table))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_predict_writes_the_table_and_the_scores(trained, table, tmp_path, capsys, ending):
    out = tmp_path / f"scores.{ending}"
    assert main(["predict", str(trained[0]), str(table), "--out", str(out)]) == 0
    assert "400 rows" in capsys.readouterr().out
    found = pd.read_csv(out) if ending == "csv" else pd.read_parquet(out)
    assert list(found.columns) == ["id", "amount", "town", "fraud", "score"]
    assert [p.name for p in tmp_path.iterdir()] == [out.name]


def test_predict_prints_json(trained, table, tmp_path, capsys):
    assert main(["predict", str(trained[0]), str(table), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == len(found["score"]) == 400
    out = tmp_path / "scores.csv"
    main(["predict", str(trained[0]), str(table), "--json", "--out", str(out)])
    assert json.loads(capsys.readouterr().out)["out"] == str(out)


def test_predict_numbers_images(tmp_path, capsys):
    model = save_untrained(tmp_path / "digits.pt", (1, 8, 8))
    np.save(tmp_path / "new.npy", sources.load("digits").inputs[:3])
    out = tmp_path / "scores.csv"
    assert main(["predict", str(model), str(tmp_path / "new.npy"), "--out", str(out)]) == 0
    assert pd.read_csv(out)["row"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("header", "options", "message"),
    [
        ("id,amont", [], "has no columns 'amount', 'town'; did you mean 'amont'?"),
        ("amount,town", ["--out", "scores.txt"], "--out must end in .csv or .parquet"),
        ("amount,town,score", ["--out", "scores.csv"], "has a column 'score' already"),
        ("amount,town", ["--out", "new.csv/x.csv"], "cannot be written"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(
    trained, tmp_path, monkeypatch, capsys, header, options, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.csv").write_text(header + "\n1" + ",2" * header.count(",") + "\n")
    assert main(["predict", str(trained[0]), "new.csv", *options]) == 2
    text = capsys.readouterr().err
    assert message in text
    assert text.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["new.csv"]
