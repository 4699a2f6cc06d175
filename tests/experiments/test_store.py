"""A store hands out each trial once, keeps its record, and refuses what does not belong to it."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import optuna
import pytest
import sqlalchemy as sa

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Grid, Record, Settings, TableFile
from everypair.experiments.search import _database, _layout, _owners, store

GRID = Grid(
    data="digits",
    imratios=(0.1,),
    losses=("square",),
    batches=(10, 50),
    seeds=(0, 1),
    rates={"square": (0.1, 1.0)},
)
SETTINGS = Settings(table=TableFile("my.csv", "fraud"))


def record_of(trial, value=0.9, state="finished"):
    return Record(
        trial,
        state,
        {"epoch": [0.0], "test_auc": [0.5]},
        validation_auc=value,
        test_auc=0.5,
        roc=([0.0], [1.0]),
    )


@pytest.fixture
def opened(tmp_path):
    with store.open(str(tmp_path), create=True) as opened:
        opened.prepare(GRID, SETTINGS)
        yield opened


def claims_of(opened, where=lambda trial: True):
    while claim := opened.claim(where):
        yield claim


def test_each_trial_is_handed_out_once(opened):
    claims = list(claims_of(opened))
    assert [claim.trial for claim in claims] == GRID.trials()
    assert opened.counts() == store.Counts(waiting=0, running=8, finished=0)


def test_records_come_back_in_the_order_of_the_grid(opened, tmp_path):
    claims = list(claims_of(opened))
    records = [record_of(claim.trial, 0.5 + claim.trial.rate / 100) for claim in claims]
    for claim, record in reversed(list(zip(claims, records, strict=True))):
        assert opened.finish(claim, record)
    assert opened.records() == records
    with store.open(str(tmp_path)) as again:
        assert again.records() == records
        assert again.settings == SETTINGS
        assert again.counts() == store.Counts(0, 0, 8)


def test_only_wanted_trials_are_claimed(opened):
    wanted = [claim.trial for claim in claims_of(opened, lambda trial: trial.batch == 50)]
    assert wanted == [trial for trial in GRID.trials() if trial.batch == 50]


def test_a_released_trial_waits_again(opened):
    claim = opened.claim()
    opened.release(claim, died=True)
    again = opened.claim()
    assert again.trial == claim.trial
    assert (claim.deaths, again.deaths) == (0, 1)
    assert not opened.finish(claim, record_of(claim.trial, 0.1)), "it was released"
    assert opened.finish(again, record_of(claim.trial, 0.9))
    assert not opened.finish(again, record_of(claim.trial, 0.2)), "it is finished"
    assert [record.validation_auc for record in opened.records()] == [0.9]


def test_closing_releases_claimed_trials(tmp_path):
    with store.open(str(tmp_path), create=True) as first:
        first.prepare(GRID, SETTINGS)
        first.claim()
    with store.open(str(tmp_path)) as second:
        assert second.counts() == store.Counts(8, 0, 0)


def test_a_record_without_a_validation_auc_is_kept(opened):
    claim = opened.claim()
    failed = record_of(claim.trial, float("nan"), "failed")
    opened.finish(claim, replace(failed, reason="no memory\0"))
    [record] = opened.records()
    assert (record.state, record.reason) == ("failed", "no memory\0")
    assert opened.counts() == store.Counts(7, 0, 1)
    assert claim.trial not in [claim.trial for claim in claims_of(opened)]


def test_a_larger_grid_adds_only_the_missing_trials(opened):
    first = opened.claim()
    opened.finish(first, record_of(first.trial))
    larger = replace(GRID, seeds=(0, 1, 2), batches=(10, 50, 100))
    opened.prepare(larger, SETTINGS)
    assert opened.counts() == store.Counts(17, 0, 1)
    claims = list(claims_of(opened))
    assert {claim.trial for claim in claims} == set(larger.trials()) - {first.trial}
    for claim in claims:
        opened.finish(claim, record_of(claim.trial))
    assert [record.trial for record in opened.records()] == larger.trials()


def test_a_smaller_grid_leaves_the_other_trials_alone(opened, tmp_path):
    smaller = replace(GRID, seeds=(1,), batches=(50,))
    opened.prepare(smaller, SETTINGS)
    assert opened.counts() == store.Counts(2, 0, 0)
    assert [claim.trial for claim in claims_of(opened)] == smaller.trials()
    with store.open(str(tmp_path)) as whole:
        assert whole.counts() == store.Counts(6, 2, 0)


def test_processes_are_told_apart_by_their_start_time(monkeypatch):
    if sys.platform == "linux":
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        monkeypatch.setattr(os, "getpid", lambda: child.pid)
        owner = _owners.this_process()
        assert not _owners.has_ended(owner)
        monkeypatch.setattr(_owners, "_machine", lambda: "elsewhere")
        other = _owners.this_process()
        monkeypatch.undo()
        child.communicate(b"\n")
        assert _owners.has_ended(owner)
        assert not _owners.has_ended(other), "of another machine that is not known"
    mine = _owners.this_process()
    assert not _owners.has_ended(mine)
    monkeypatch.setattr(_owners, "start_time", lambda pid: "later")
    assert _owners.has_ended(mine), "another process has the number now"


def test_without_proc_the_start_time_comes_from_ps(monkeypatch):
    from_proc = _owners.start_time(os.getpid())
    monkeypatch.setattr(_owners, "Path", lambda path: Path("/nowhere"))
    from_ps = _owners.start_time(os.getpid())
    assert from_ps != from_proc
    monkeypatch.setenv("PATH", "/nowhere")
    assert _owners.start_time(os.getpid()) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (replace(SETTINGS, epochs=7), "epochs 20 (now 7)"),
        (replace(SETTINGS, model="linear", margin=2.0), "model mlp (now linear), margin none"),
        (replace(SETTINGS, fingerprint="abc"), "begun on other data"),
    ],
)
def test_other_settings_are_refused(opened, settings, message):
    with pytest.raises(UserError) as refusal:
        opened.prepare(GRID, settings)
    assert message in str(refusal.value)
    assert "--out" in str(refusal.value)
    assert opened.settings == SETTINGS


def test_another_layout_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_layout, "LAYOUT", 99)
    with store.open(str(tmp_path), create=True) as later:
        later.prepare(GRID, SETTINGS)
    monkeypatch.undo()
    for create in (True, False):
        with pytest.raises(UserError, match=r"has layout 99, and this version .* --out"):
            store.open(str(tmp_path), create=create)


def test_settings_that_this_version_does_not_know_are_refused(tmp_path, monkeypatch):
    @dataclass(frozen=True)
    class LaterSettings(Settings):
        temperature: float = 1.0

    for module in (_layout, store):
        monkeypatch.setattr(module, "Settings", LaterSettings)
    with store.open(str(tmp_path), create=True) as later:
        later.prepare(GRID, LaterSettings())
    monkeypatch.undo()
    message = "has settings that .* does not know: temperature. Use the version that wrote it"
    with pytest.raises(UserError, match=message):
        store.open(str(tmp_path))


def damage(folder, statement, *values):
    with closing(sqlite3.connect(folder / "study.db")) as database, database:
        database.execute(statement, values)


def settings_of(folder):
    with store.open(str(folder)) as opened:
        return opened.settings


TEXTS = ["{", "null", "3", '"text"', "[[1]]", '{"trial": 3}', '{"table": 3}', b"\xff", 7]


@pytest.mark.parametrize("text", ["", *TEXTS])
def test_damaged_settings_are_one_line(opened, tmp_path, text):
    opened.close()
    damage(tmp_path, "UPDATE everypair_experiments SET settings = ?", text)
    with pytest.raises(UserError, match=r"the store .* (is damaged|cannot be used|does not know)"):
        settings_of(tmp_path)


CHANGES = [
    {"state": "ready"},
    {"test_auc": "0.5"},
    {"validation_auc": None},
    {"history": [1, 2]},
    {"history": {"epoch": [0.0], "test_auc": []}},
    {"roc": 3},
    {"trial": {"cell": {}}},
    {"more": 1},
]


@pytest.mark.parametrize("change", ["[]", "{}", *TEXTS, *CHANGES], ids=repr)
def test_damaged_records_are_one_line(opened, tmp_path, change):
    claim = opened.claim()
    opened.finish(claim, record_of(claim.trial))
    if isinstance(change, dict):
        change = json.dumps({**record_of(claim.trial).to_dict(), **change})
    damage(tmp_path, "UPDATE everypair_trials SET record = ? WHERE record IS NOT NULL", change)
    with pytest.raises(UserError, match=r"the store .* (is damaged: it holds|cannot be used)"):
        opened.records()


def test_an_owner_that_cannot_be_read_has_not_ended():
    assert not any(map(_owners.has_ended, (None, "", "[]", "3", '["one"]')))


@pytest.mark.parametrize("where", ["folder", "sqlite:///study.db", "postgresql://host/db"])
def test_advice_about_a_url_is_given_for_urls_only(where):
    for message in ("disk I/O error", "something else"):
        error = sa.exc.OperationalError("SELECT", {}, Exception(message))
        with pytest.raises(UserError) as refusal, _database.storage_errors(where):
            raise error
        text = str(refusal.value)
        assert ("the URL" in text) == ("://" in where and message != "disk I/O error")
        assert ("disk" in text.partition("(It says")[0]) != ("the URL" in text)


def test_a_store_of_the_earlier_layout_is_refused_and_left_alone(tmp_path):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    storage = optuna.storages.RDBStorage(url)
    study = optuna.create_study(storage=storage, study_name="digits imratio=0.1 square sgd seed=0")
    for name, value in (("experiment", "raw"), ("everypair", 1)):
        study.set_user_attr(name, value)
    storage.remove_session()
    storage.engine.dispose()
    before = (tmp_path / "study.db").read_bytes()
    for create in (True, False):
        with pytest.raises(
            UserError, match=r"layout 1, .* Optuna study of an earlier version\. Use"
        ):
            store.open(f"{url}#raw", create=create)
    with pytest.raises(UserError, match="no experiment store"):
        store.open(str(tmp_path))
    assert (tmp_path / "study.db").read_bytes() == before
    with store.open(f"{url}#new", create=True) as other:
        other.prepare(GRID, SETTINGS)
        assert sum(other.counts()) == 8


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "holds no experiment"), (b"scores,labels\n" * 99, "no SQLite file")],
)
def test_a_folder_without_a_store_is_refused(tmp_path, content, message):
    if content:
        (tmp_path / "study.db").write_bytes(content)
    before = sorted(tmp_path.iterdir())
    for where in (str(tmp_path), f"sqlite:///{tmp_path / 'study.db'}"):
        with pytest.raises(UserError, match=message):
            store.open(where)
    assert sorted(tmp_path.iterdir()) == before


def test_a_database_of_other_tables_is_refused(tmp_path):
    sqlite3.connect(tmp_path / "study.db").execute("create table mine (x)").connection.close()
    with pytest.raises(UserError, match="no experiment store"):
        store.open(str(tmp_path))


def test_a_folder_may_have_any_name(tmp_path):
    folder = tmp_path / "100%25 sure? #1"
    with store.open(str(folder), create=True) as opened:
        opened.prepare(GRID, SETTINGS)
    assert [path.name for path in folder.iterdir()] == ["study.db"]
    with store.open(str(folder)) as opened:
        assert sum(opened.counts()) == 8


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Name another folder"):
        store.open(str(tmp_path / "file" / "folder"), create=True)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://me:secret@localhost:1/none",
        "postgresql+psycopg://me:a/secret@localhost:1/none#name",
        "postgresql+psycopg://localhost:1/none?user=me&password=secret",
        "postgresql+psycopg://localhost:1/none?sslpassword=secret&user=me#name",
        "postgresql+psycopg://localhost:1/none?PASSWORD=my secret",
        "postgresql+psycopg://me:secret",
        "postgresql+psycopg://me:x@secret@localhost:1/none",
        "postgresql+psycopg://localhost:1/none?password=x&secret",
        "nosuch://me:secret@host/db?password=secret",
    ],
)
def test_a_database_that_cannot_be_reached_is_one_line_without_its_password(url):
    with pytest.raises(UserError) as refusal:
        store.open(url, create=True)
    assert re.match(r"the (store .* cannot be used|port in the URL)", str(refusal.value))
    assert "secret" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_unknown_kind_of_database_is_refused_with_an_example():
    with pytest.raises(UserError, match=r"should look like postgresql\+psycopg://"):
        store.open("nosuch://host/db", create=True)


def test_several_experiments_share_a_database(tmp_path):
    url = f"sqlite:///{tmp_path / 'both.db'}"
    with store.open(f"{url}#one", create=True) as one, store.open(f"{url}#two", create=True) as two:
        one.prepare(GRID, SETTINGS)
        two.prepare(GRID, replace(SETTINGS, epochs=3))
        claim = one.claim()
        one.finish(claim, record_of(claim.trial))
        assert two.records() == []
        assert two.counts() == store.Counts(8, 0, 0)
    with store.open(f"{url}#two") as two:
        assert two.settings.epochs == 3
    with store.open(url) as neither, pytest.raises(UserError, match="holds no trials yet"):
        _ = neither.settings


def tpe_choices(where, n, interrupted_at=()):
    chosen = []
    with store.open(where, create=True) as opened:
        opened.prepare(GRID, SETTINGS, tpe_trials=n)
        while claim := opened.claim():
            if len(chosen) in interrupted_at and claim.deaths == 0:
                opened.release(claim, died=True)
                continue
            opened.finish(claim, record_of(claim.trial, 1 - abs(claim.trial.rate - 0.3)))
            chosen.append(claim.trial)
        assert opened.counts() == store.Counts(0, 0, 2 * n)
    return chosen


def test_tpe_chooses_the_same_after_an_interruption_and_with_several_processes(tmp_path):
    chosen = tpe_choices(str(tmp_path / "a"), 12)
    assert len(set(chosen)) == len(chosen) == 24
    assert all(0.1 <= trial.rate <= 1.0 for trial in chosen)
    assert {trial.batch for trial in chosen} == {10, 50}
    assert tpe_choices(str(tmp_path / "b"), 12, interrupted_at=(3, 18)) == chosen
    assert tpe_choices(str(tmp_path / "c"), 4) == chosen[:4] + chosen[12:16]
    tpe_choices(str(tmp_path / "c"), 12)
    folder = str(tmp_path / "d")

    def one_of_several(_):
        with store.open(folder, create=True) as opened:
            opened.prepare(GRID, SETTINGS, tpe_trials=12)
            while opened.counts().waiting:
                if claim := opened.claim():
                    opened.finish(claim, record_of(claim.trial, 1 - abs(claim.trial.rate - 0.3)))
                time.sleep(0.001)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(one_of_several, range(3)))
    for where in (folder, str(tmp_path / "c")):
        with store.open(where) as opened:
            assert [record.trial for record in opened.records()] == chosen


def test_tpe_runs_the_trials_of_a_cell_one_after_another(tmp_path):
    with store.open(str(tmp_path), create=True) as opened:
        opened.prepare(GRID, SETTINGS, tpe_trials=3)
        cells = [claim.trial.cell for claim in claims_of(opened)]
        assert cells == GRID.cells()
        assert opened.counts() == store.Counts(4, 2, 0)
        with pytest.raises(UserError, match=r"begun with TPE over batches .* \(now a grid\)"):
            opened.prepare(GRID, SETTINGS)
        with pytest.raises(UserError, match=r"\(now TPE over batches \[10\] and rates"):
            opened.prepare(replace(GRID, batches=(10,)), SETTINGS, tpe_trials=3)
