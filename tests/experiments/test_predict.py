"""`everypair predict`: columns come back unchanged, and errors are one line."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from everypair.cli import main
from everypair.experiments.data._encoder import TableEncoder
from everypair.experiments.plan import Cell, Settings, Trial
from everypair.experiments.training import models, saved


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A linear network for the columns code, amount and day, with untrained weights."""
    frame = pd.DataFrame(
        {
            "code": ["0638", "1204"] * 10,
            "amount": np.arange(20.0),
            "day": pd.date_range("2024-01-01", periods=20).astype(str),
        }
    )
    encoder = TableEncoder().fit(frame)
    network = models.build("linear", (len(encoder.names),), sigmoid=False, seed=0)
    path = tmp_path_factory.mktemp("model") / "model.pt"
    trial = Trial(Cell("table", 0.0, "square", "sgd", 0), 50, 0.1)
    saved.save(
        path,
        model_state=network.state_dict(),
        settings=Settings(model="linear"),
        trial=trial,
        encoder=encoder,
    )
    return path


TEXT = (
    'code,"the note",amount,day\r\n'
    '0638,"a, ""quoted"" note",1.50,2024-01-01\r\n'
    "\r\n"
    '1204,"two\nlines",2.0,2024-01-02\r\n'
    "0638,short\r\n"
)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_every_column_comes_back_byte_for_byte(model, tmp_path, encoding):
    file, out = tmp_path / "new.csv", tmp_path / "scored.csv"
    content = TEXT.replace("short", "Zürich").encode(encoding)
    file.write_bytes(content)
    assert main(["predict", str(model), str(file), "--out", str(out)]) == 0
    scores = saved.load(model).score(file).tolist()
    before = content.decode(encoding).replace("0638,Zürich", "0638,Zürich,,")
    rows = [part for part in before.split("\r\n") if part]
    after = out.read_bytes().decode(encoding)
    assert after.startswith(f"{rows[0]},score\r\n{rows[1]},{scores[0]!r}\r\n\r\n")
    assert after.endswith(f"{rows[2]},{scores[1]!r}\r\n{rows[3]},{scores[2]!r}\r\n")
    assert (content[:3] == b"\xef\xbb\xbf") == (out.read_bytes()[:3] == b"\xef\xbb\xbf")


def test_scores_have_the_decimal_comma_of_the_file(model, tmp_path, capsys):
    file, out = tmp_path / "new.csv", tmp_path / "scored.csv"
    file.write_text("code;amount;day;y\n0638;1,5;2024-01-01;0\n1204;3,5;2024-01-02;1\n")
    assert main(["predict", str(model), str(file), "--out", str(out)]) == 0
    first = out.read_text().splitlines()[1]
    assert first.startswith("0638;1,5;2024-01-01;0;")
    assert "." not in first
    assert main(["evaluate", str(out), "--labels", "y"]) == 0


def test_parquet_columns_keep_their_types(model, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    file, out = tmp_path / "new.parquet", tmp_path / "scored.parquet"
    columns = {
        "code": pa.array(["0638"]),
        "amount": pa.array([1], pa.int8()),
        "day": ["2024-01-01"],
    }
    pq.write_table(pa.table(columns), file)
    assert main(["predict", str(model), str(file), "--out", str(out)]) == 0
    assert pq.read_schema(out).field("amount").type == pa.int8()
    assert pq.read_schema(out).names == ["code", "amount", "day", "score"]


def test_unpaired_quotes_are_refused(model, tmp_path, capsys):
    file, out = tmp_path / "new.csv", tmp_path / "scored.csv"
    file.write_text('code,amount,day,size\n0638,1,2024-01-01,5"\n1204,2,2024-01-02,6\n')
    assert main(["predict", str(model), str(file), "--out", str(out)]) == 2
    assert "quotation marks" in capsys.readouterr().err
    assert not out.exists()


def test_columns_that_cannot_be_used_are_named(model, tmp_path, capsys):
    file = tmp_path / "new.csv"
    file.write_text("code,amount,day\n0001,much,\n0002,little,\n")
    assert main(["predict", str(model), str(file), "--json"]) == 0
    printed = capsys.readouterr()
    assert "Column 'code': all values did not occur in the training rows" in printed.err
    notes = json.loads(printed.out)["notes"]
    assert notes["day"] == "all values are missing"
    assert notes["amount"].startswith("all values cannot be read as numbers")


def test_wrong_arguments_give_one_line(model, tmp_path, capsys):
    table, other = tmp_path / "a.csv", tmp_path / "b.csv"
    table.write_text("code,amount,day\n1,2,2024-01-01\n")
    other.write_text("x\n1\n")
    damaged = tmp_path / "model.pt"
    damaged.write_bytes(model.read_bytes()[:-300])
    cases = [
        ([table, model], "the order is: everypair predict MODEL FILE"),
        ([table, other], "a.csv is not a model"),
        ([damaged, table], "is not a model that an experiment saved, or it is damaged"),
        ([model, model], "is a zip archive"),
        ([model, other], "has no columns 'code', 'amount', 'day'"),
    ]
    for arguments, message in cases:
        assert main(["predict", *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_a_model_with_wrong_contents_is_damaged(model, tmp_path, capsys):
    import torch

    plain = torch.load(model, weights_only=True)
    del plain["settings"]
    path, table = tmp_path / "model.pt", tmp_path / "a.csv"
    torch.save(plain, path)
    table.write_text("code,amount,day\n1,2,2024-01-01\n")
    assert main(["predict", str(path), str(table)]) == 2
    assert "is damaged, or of another version" in capsys.readouterr().err
