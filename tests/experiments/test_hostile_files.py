"""Files that are damaged, wide or malicious: a clear line, and nothing that controls a terminal."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import math
import os
import re
import time
import warnings
from contextlib import suppress

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from rich.console import Console
from rich.table import Table

import everypair as ep
from everypair import cli
from everypair.experiments import _terminal
from everypair.experiments.data import _chunks, _files
from everypair.experiments.errors import UserError

CODES = "\x1b]0;title\x07\x1b[31m"  # set the title of the window, and print in red
MARKS = "[bold]:smile:[/nothing]"  # markup and emoji of rich


def written(path, columns):
    pd.DataFrame(columns).to_csv(path, index=False)
    return str(path)


def is_harmless(text):
    return not any(ord(character) < 32 and character != "\n" for character in text)


# Compressed files


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("command", ["evaluate", "experiment"])
def test_a_truncated_or_damaged_file_is_one_line(tmp_path, capsys, command, pack):
    frame = pd.DataFrame(
        {"score": np.random.default_rng(0).random(9999), "label": [0, 1, 1] * 3333}
    )
    packed = pack(frame.to_csv(index=False).encode())
    middle = len(packed) // 2
    path = tmp_path / "cut.csv"
    options = [] if command == "evaluate" else ["--label", "label", "--data"]
    for content in (packed[:middle], packed[:middle] + bytes(20) + packed[middle + 20 :]):
        path.write_bytes(content)
        assert cli.main([command, *options, str(path)]) == 2
        text = capsys.readouterr().err.splitlines()[-1]
        assert re.match(f"everypair: {path} (cannot be read:|is not a table)", text)


@pytest.mark.parametrize("ending", ["csv", "parquet", "arrow", "xlsx"])
def test_a_file_with_changed_bytes_is_read_or_refused(tmp_path, ending):
    if ending == "xlsx":
        pytest.importorskip("openpyxl")
    frame = pd.DataFrame({"score": np.arange(30) / 7, "label": ["a", "b"] * 15})
    path = tmp_path / f"table.{ending}"
    write = {"csv": frame.to_csv, "parquet": frame.to_parquet, "arrow": frame.to_feather}
    write.get(ending, frame.to_excel)(path)
    whole, random = path.read_bytes(), np.random.default_rng(0)
    for _ in range(60):
        content = bytearray(whole)
        for place in random.integers(0, len(content), 2):
            content[place] = random.integers(0, 256)
        path.write_bytes(content[: random.integers(1, 2 * len(content))])
        with suppress(UserError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            list(_chunks.chunks(path, _chunks.column_names(path)))
            _files.read(path)


# What is not a file


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_links_and_pipes_are_named_as_such(tmp_path, capsys, command):
    target = tmp_path / "scored.csv"
    kinds = {"which does not exist": lambda: target.symlink_to("nowhere.csv")}
    if hasattr(os, "mkfifo"):
        kinds["is a pipe"] = lambda: os.mkfifo(target)
    for message, make in kinds.items():
        make()
        assert cli.main([command, str(target), *(["x"] if command == "predict" else [])]) == 2
        text = capsys.readouterr().err
        assert message in text
        assert "no such file" not in text
        target.unlink()


# Many columns


def test_pandas_parses_a_wide_file_once(tmp_path, monkeypatch):
    path = tmp_path / "wide.csv"
    names = ",".join(f"x{i}" for i in range(3000))
    path.write_text(
        f"score,label,{names}\n" + "".join(f"{i},{i % 2}{',1' * 3000}\n" for i in range(4))
    )
    calls, read_csv = [], pd.read_csv

    def counted(*arguments, **options):
        calls.append(options)
        return read_csv(*arguments, **options)

    monkeypatch.setattr(pd, "read_csv", counted)
    assert cli.main(["evaluate", str(path), "--json"]) == 0
    assert len(calls) == 1


def test_names_of_many_columns_are_compared_in_linear_time(tmp_path):
    table = pa.table({f"x{i}": [1.0] for i in range(60_000)})
    with pa.ipc.new_file(tmp_path / "wide.arrow", table.schema) as file:
        file.write_table(table)
    begin = time.perf_counter()
    assert len(_chunks.column_names(tmp_path / "wide.arrow")) == 60_000
    assert time.perf_counter() - begin < 10


def test_a_chunk_of_a_wide_file_has_fewer_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(_chunks, "_CELLS", 30)
    path = written(tmp_path / "wide.csv", {name: range(20) for name in "abc"})
    found = [len(chunk.frame) for chunk in _chunks.chunks(_files.Path(path), ["b"])]
    assert found == [10, 10]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_names_are_those_of_pandas(tmp_path, encoding, separator, end):
    names = ["a", "", "b c ", '"x ""y"" ' + separator + 'z"', "NA", '5" é']
    path = tmp_path / "table.csv"
    lines = ["", "   ", separator.join(names), separator.join("123456"), ""]
    path.write_bytes(end.join(lines).encode(encoding))
    how = _files.csv_format(path)
    with path.open("rb") as file:
        assert list(how.names) == list(pd.read_csv(file, **how.options()).columns)
    assert how.separator == separator


def test_a_huge_field_is_no_column(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(",".join(f"x{i}" for i in range(40_000)) + "\n" + ",".join("1" * 40_000))
    assert len(_files.csv_format(path).names) == 40_000
    path.write_text("x" * 200_000)
    with pytest.raises(UserError, match="no first line"):
        _files.csv_format(path)


# Losses beyond float64


BINARY = {"score": [1e200, 0.5, -1e200, 0.1, 3.0], "label": [0, 1, 1, 0, 1]}


@pytest.mark.parametrize(
    "options",
    [["--pairs", "binary"], ["--pairs", "ordered"], ["--compare", "other"], ["--group", "one"]],
    ids=lambda options: options[0] + options[1],
)
def test_a_loss_that_overflows_leaves_the_other_results(tmp_path, capsys, options):
    columns = {**BINARY, "other": [1.0, 2.0, 3.0, 4.0, 5.0], "one": ["a"] * 5}
    line = ["evaluate", written(tmp_path / "scored.csv", columns), *options]
    assert cli.main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["auc"] == ep.auc(BINARY["score"], BINARY["label"])
    assert found["losses"]["square"] is None
    expected = ep.pair_loss(BINARY["score"], BINARY["label"], surrogate="linear_hinge")
    assert found["losses"]["linear_hinge"] == pytest.approx(expected, rel=1e-12)
    assert list(found["losses"]) == list(ep.surrogates.names())
    assert cli.main(line) == 0
    text = capsys.readouterr().out
    assert "inf: the mean loss is beyond the range of float64." in text
    assert cli.main([*line, "--loss", "linear_hinge"]) == 0
    assert "inf:" not in capsys.readouterr().out


def test_a_loss_that_overflows_in_one_group_is_undefined_by_group(tmp_path, capsys):
    columns = {**BINARY, "user": ["b", "b", "b", "a", "a"]}
    line = ["evaluate", written(tmp_path / "scored.csv", columns), "--group", "user", "--by-group"]
    assert cli.main([*line, "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["by_group"]
    assert groups["a"]["losses"]["square"] is None
    assert groups["a"]["losses"]["linear_hinge"] == 0.0


def test_buckets_say_which_scores_they_cannot_count(tmp_path, capsys):
    line = ["evaluate", written(tmp_path / "scored.csv", BINARY), "--bounded"]
    assert cli.main(line) == 2
    assert "range of float32" in capsys.readouterr().err


# JSON


def test_json_has_null_for_numbers_that_are_not_finite(capsys):
    plain = {"a": [1.0, math.nan, (math.inf, "inf")], "b": {"c": -math.inf, "d": True}}
    _terminal.echo_json(plain)
    expected = {"a": [1.0, None, [None, "inf"]], "b": {"c": None, "d": True}}
    assert json.loads(capsys.readouterr().out) == expected


# Text that controls a terminal


def test_only_harmless_characters_are_printed():
    text = "é ☃ 漢\tx\n"
    assert _terminal.printable(text) == text
    assert _terminal.printable(f"{CODES}\u202e\x9b\udcff") == (
        r"\x1b]0;title\x07\x1b[31m\u202e\x9b\udcff"
    )


def test_a_console_takes_text_literally():
    text = f"{CODES}{MARKS}"
    console = _terminal.console()
    console.file = io.StringIO()
    console.print(text, soft_wrap=True)
    table = Table(text)
    table.add_row(text)
    console.print(table)
    assert console.file.getvalue().count(_terminal.printable(text)) == 3
    assert isinstance(console, Console)


def test_names_and_values_cannot_control_the_terminal(tmp_path, capsys):
    columns = {
        f"score{CODES}": np.arange(40) * 0.37 % 1,
        f"label{CODES}": [f"{name}{CODES}{MARKS}" for name in ["no", "yes"] * 20],
        f"group{CODES}": [f"{name}{CODES}{MARKS}" for name in ["a", "b", "b", "a"] * 10],
    }
    path = str(tmp_path / f"{CODES}.parquet")
    pd.DataFrame(columns).to_parquet(path)
    names = dict(zip(("--scores", "--labels", "--group"), columns, strict=True))
    line = ["evaluate", path, *(text for pair in names.items() for text in pair), "--by-group"]
    assert cli.main([*line, "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["by_group"]) == sorted(
        set(columns[f"group{CODES}"])
    )
    assert cli.main(line) == 0
    text = capsys.readouterr().out
    assert is_harmless(text)
    assert MARKS in text
    for wrong in (["--scores", "none"], ["--labels", f"score{CODES}"], ["--positive", "none"]):
        assert cli.main([*line, *wrong]) == 2
        text = capsys.readouterr().err
        assert is_harmless(text)
        assert r"\x1b]0;title" in text


def test_undecodable_names_of_files_are_printed(tmp_path, capsys):
    name = os.fsdecode(os.fsencode(str(tmp_path)) + b"/scored\xff.csv")
    try:
        path = written(name, BINARY)
    except (OSError, UnicodeError):
        pytest.skip("this file system has no such names")
    assert cli.main(["evaluate", path, "--out", f"{path}.png"]) == 0
    assert r"scored\udcff.csv.png" in capsys.readouterr().out


# URLs


@pytest.mark.parametrize("url", ["sqlite:////x.db", "postgresql+psycopg://me@host/db"])
@pytest.mark.parametrize("command", [["experiment", "digits"], ["report", "runs"]])
def test_a_url_is_no_folder(tmp_path, monkeypatch, capsys, command, url):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command, "--out", url]) == 2
    assert "--out must be a folder" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
