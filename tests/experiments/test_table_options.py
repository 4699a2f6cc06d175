"""Options of `everypair experiment` for the rows and columns of a table."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from everypair.cli import main
from everypair.experiments.commands._options import NETWORK_OPTIONS, planned
from everypair.experiments.commands._table_options import describe_table
from everypair.experiments.data import sources
from everypair.experiments.errors import UserError
from everypair.experiments.plan import Settings

ROWS = "id,x,z,day,y\n" + "".join(
    f"{k},{(7 * k) % 11},{k % 3},2024-01-{1 + k // 4:02d},{'abc'[k % 3]}\n" for k in range(90)
)


def test_options_become_the_description_of_a_table():
    _, settings = planned(
        data=Path("my.csv"), label="y", drop=["a, b", "c"], time="day", epochs=1, positive="b"
    )
    assert settings.table.drop == ("a", "b", "c")
    assert (settings.table.time, settings.table.test) == ("day", None)
    _, settings = planned(data=Path("my.csv"), label="y", only=["a"], test=Path("t.csv"), epochs=1)
    assert settings.table.only == ("a",)
    assert settings.table.test == str(Path("t.csv").absolute())


def test_options_of_a_table_need_a_table():
    with pytest.raises(UserError, match="--drop, --time goes with the preset table only"):
        planned(preset="digits", drop=["a"], time="day")


def test_every_setting_of_networks_trains_networks_on_a_table():
    table = {"data": Path("my.csv"), "label": "y"}
    assert planned(**table)[1].model == "families"
    settings = {field.name for field in fields(Settings)} - {"table", "fingerprint", "sampler"}
    assert {*settings, "batches"} <= set(NETWORK_OPTIONS)
    grid, settings = planned(**table, precision="bf16")
    assert (settings.precision, grid.spaces) == ("bf16", {})


def test_the_table_is_described_in_the_folder(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text(ROWS)
    grid, settings = planned(data=path, label="y", positive="b", drop=["z"], epochs=1)
    dataset = sources.load("table", table=settings.table)
    lines = describe_table(settings.table, grid, settings, dataset, tmp_path)
    assert lines[0] == "my.csv: 90 rows, 30 of them positive (y = b)."
    assert "'z' (dropped by --drop)" in lines[1]
    kept = json.loads((tmp_path / "data.json").read_text())
    assert kept["fingerprint"] == dataset.fingerprint
    # A folder with other data keeps its record; its store will refuse to go on.
    path.write_text(ROWS.replace("0,0,0", "0,1,0", 1))
    other = sources.load("table", table=settings.table)
    describe_table(settings.table, grid, settings, other, tmp_path)
    assert json.loads((tmp_path / "data.json").read_text()) == kept


def test_wrong_columns_are_one_line(tmp_path, capsys):
    path = tmp_path / "my.csv"
    path.write_text(ROWS)
    command = ["experiment", "table", "--data", str(path), "--label", "y"]
    for options, message in (
        (["--drop", "zz"], "has no column 'zz'"),
        ([], "name it: --positive VALUE"),
        (["--positive", "b", "--time", "y"], "label and time must be two columns"),
        (["--positive", "b", "--test", str(tmp_path / "none.csv")], "no such file"),
    ):
        assert main([*command, *options]) == 2
        assert message in capsys.readouterr().err
