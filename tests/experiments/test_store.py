"""A store hands out every trial once, keeps what it left, and survives its processes."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Grid, Record, Settings, TableFile
from everypair.experiments.search import _owners, store

GRID = Grid(
    data="digits",
    imratios=(0.1,),
    losses=("square",),
    batches=(10, 50),
    seeds=(0, 1),
    rates={"square": (0.1, 1.0)},
)
SETTINGS = Settings(table=TableFile("my.csv", "fraud"))


def left_by(trial, value=0.9, state="finished"):
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


def test_hands_out_every_trial_once(opened):
    claims = list(claims_of(opened))
    assert [claim.trial for claim in claims] == GRID.trials()
    assert opened.counts() == store.Counts(waiting=0, running=8, finished=0)


def test_keeps_records_in_the_order_of_the_grid(opened, tmp_path):
    records = [left_by(claim.trial, 0.5 + claim.trial.rate / 100) for claim in claims_of(opened)]
    claims = opened._claims.copy().values()
    for claim in reversed(claims):
        assert opened.finish(claim, next(r for r in records if r.trial == claim.trial))
    assert opened.records() == records
    with store.open(str(tmp_path)) as again:
        assert again.records() == records
        assert again.settings == SETTINGS
        assert again.counts() == store.Counts(0, 0, 8)


def test_only_welcome_trials_are_claimed(opened):
    welcome = [claim.trial for claim in claims_of(opened, lambda trial: trial.batch == 50)]
    assert welcome == [trial for trial in GRID.trials() if trial.batch == 50]


def test_a_released_trial_waits_again(opened):
    claim = opened.claim()
    opened.release(claim, died=True)
    again = opened.claim()
    assert again.trial == claim.trial
    assert (claim.deaths, again.deaths) == (0, 1)
    assert not opened.finish(claim, left_by(claim.trial, 0.1)), "it was given up"
    assert opened.finish(again, left_by(claim.trial, 0.9))
    assert [record.validation_auc for record in opened.records()] == [0.9]


def test_closing_releases_what_is_claimed(tmp_path):
    with store.open(str(tmp_path), create=True) as first:
        first.prepare(GRID, SETTINGS)
        first.claim()
    with store.open(str(tmp_path)) as second:
        assert second.counts() == store.Counts(8, 0, 0)


def test_a_trial_without_a_value_fails_with_its_record(opened):
    claim = opened.claim()
    opened.finish(claim, replace(left_by(claim.trial, float("nan"), "failed"), reason="no memory"))
    [record] = opened.records()
    assert (record.state, record.reason) == ("failed", "no memory")
    assert opened.counts() == store.Counts(7, 0, 1)
    assert claim.trial not in [claim.trial for claim in claims_of(opened)]


def test_preparing_again_adds_only_what_is_new(opened):
    first = opened.claim()
    opened.finish(first, left_by(first.trial))
    larger = replace(GRID, seeds=(0, 1, 2), batches=(10, 50, 100))
    opened.prepare(larger, SETTINGS)
    assert opened.counts() == store.Counts(17, 0, 1)
    assert {claim.trial for claim in claims_of(opened)} == set(larger.trials()) - {first.trial}


def test_a_smaller_grid_leaves_the_rest_alone(opened):
    list(claims_of(opened, lambda trial: False))
    smaller = replace(GRID, seeds=(1,), batches=(50,))
    opened.prepare(smaller, SETTINGS)
    assert [claim.trial for claim in claims_of(opened)] == smaller.trials()


def claim_all(where, queue):
    with store.open(where, create=True) as opened:
        opened.prepare(GRID, SETTINGS)
        for claim in claims_of(opened):
            opened.finish(claim, left_by(claim.trial))
            queue.append(claim.trial)


def test_threads_with_stores_of_their_own_share_the_trials(tmp_path):
    taken = []
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(claim_all, str(tmp_path), taken) for _ in range(4)]:
            done.result()
    assert sorted(taken) == sorted(GRID.trials())


CLAIM_AND_DIE = """
import os, sys
from everypair.experiments.search import store
from tests.experiments.test_store import GRID, SETTINGS
opened = store.open(sys.argv[1], create=True)
opened.prepare(GRID, SETTINGS)
print(opened.claim(lambda trial: trial.cell.seed == 1).trial.rate, flush=True)
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_process_ran_waits_again(tmp_path):
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    died = subprocess.run(
        [sys.executable, "-c", CLAIM_AND_DIE, str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert died.returncode == -9, died.stderr
    with store.open(str(tmp_path), create=True) as opened:
        assert opened.counts().running == 1
        opened.prepare(GRID, SETTINGS)
        assert opened.counts() == store.Counts(8, 0, 0)
        assert sorted(claim.trial for claim in claims_of(opened)) == sorted(GRID.trials())


def test_a_record_that_was_kept_before_the_state_is_not_lost(opened, monkeypatch):
    claim = opened.claim()
    monkeypatch.setattr(type(opened._storage), "set_trial_state_values", lambda *a, **k: True)
    opened.finish(claim, left_by(claim.trial))
    monkeypatch.undo()
    assert opened.counts().running == 1
    monkeypatch.setattr("everypair.experiments.search._cells.is_dead", lambda owner: True)
    opened.put_back_the_dead()
    assert opened.counts() == store.Counts(7, 0, 1)


def test_a_machine_that_fell_silent_is_given_up(opened, tmp_path):
    claim = opened.claim()
    opened._storage.set_trial_user_attr(
        claim.trial_id, "owner", {"host": "elsewhere", "pid": 1, "began": "2"}
    )
    opened.beat()
    assert opened.put_back_the_dead() == 0
    with sqlite3.connect(tmp_path / "study.db") as database:
        database.execute("update trial_heartbeats set heartbeat = datetime('now', '-1 day')")
    assert opened.put_back_the_dead() == 1
    assert opened.counts().waiting == 8
    assert not opened.finish(claim, left_by(claim.trial)), "somebody else may run it by now"


def test_one_who_died_before_signing_is_given_up_after_a_while(opened, tmp_path):
    opened.claim()
    with sqlite3.connect(tmp_path / "study.db") as database:
        database.execute("delete from trial_user_attributes where key = 'owner'")
    assert opened.put_back_the_dead() == 0
    with sqlite3.connect(tmp_path / "study.db") as database:
        database.execute("update trials set datetime_start = '2001-01-01 00:00:00.000000'")
    assert opened.put_back_the_dead() == 1


def test_what_was_read_as_waiting_may_be_finished_by_now(opened):
    claim = opened.claim()
    cell = opened._cells[claim.trial.cell]
    slots, search = opened._plan[claim.trial.cell]
    stale = cell.holders()[next(iter(slots))]
    assert cell._take(stale, search) is None
    opened.finish(claim, left_by(claim.trial))
    assert cell._take(stale, search) is None


def test_without_proc_the_system_is_asked(monkeypatch):
    began = _owners._began(os.getpid())
    monkeypatch.setattr(_owners, "Path", lambda path: Path("/nowhere"))
    asked = _owners._began(os.getpid())
    assert asked != began
    monkeypatch.setenv("PATH", "/nowhere")
    assert _owners._began(os.getpid()) is None


def test_processes_are_told_apart_by_when_they_began():
    me = _owners.this_process()
    assert not _owners.is_dead(me)
    assert _owners.is_dead({**me, "began": "another time"})
    assert not _owners.is_dead({**me, "began": "another time", "host": "elsewhere"})
    if sys.platform == "linux":
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        owner = {**me, "pid": child.pid, "began": _owners._began(child.pid)}
        assert not _owners.is_dead(owner)
        child.communicate(b"\n")
        assert _owners.is_dead(owner)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (replace(SETTINGS, epochs=7), "epochs 20 (now 7)"),
        (replace(SETTINGS, model="linear", margin=2.0), "model mlp (now linear), margin 1.0"),
        (replace(SETTINGS, fingerprint="abc"), "begun on other data"),
    ],
)
def test_other_settings_are_refused(opened, settings, said):
    with pytest.raises(UserError) as refusal:
        opened.prepare(GRID, settings)
    assert said in str(refusal.value)
    assert "--out" in str(refusal.value)


def test_another_layout_is_refused(opened, tmp_path):
    with sqlite3.connect(tmp_path / "study.db") as database:
        database.execute("update study_user_attributes set value_json='99' where key='everypair'")
    with pytest.raises(UserError, match="layout 99"):
        store.open(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "holds no experiment"), (b"scores,labels\n" * 99, "no SQLite file")],
)
def test_what_is_no_store_is_refused(tmp_path, content, said):
    if content:
        (tmp_path / "study.db").write_bytes(content)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match=said):
        store.open(str(tmp_path))
    assert sorted(tmp_path.iterdir()) == before


def test_a_database_of_other_tables_is_refused(tmp_path):
    sqlite3.connect(tmp_path / "study.db").execute("create table mine (x)").connection.close()
    with pytest.raises(UserError, match="no experiment store"):
        store.open(str(tmp_path))


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Name another folder"):
        store.open(str(tmp_path / "file" / "folder"), create=True)


def test_a_url_is_refused_in_one_line_without_its_password():
    url = "postgresql+psycopg://me:secret@localhost:1/none"
    with pytest.raises(UserError) as refusal:
        store.open(url, create=True)
    assert "secret" not in str(refusal.value)
    assert "\n" not in str(refusal.value)
    with pytest.raises(UserError, match="should look like"):
        store.open("nosuch://host/db", create=True)


def test_a_full_disk_is_said_and_the_store_goes_on_later(opened):
    with opened._engine.connect() as connection:
        pages = connection.exec_driver_sql("pragma page_count").scalar()
    claim = opened.claim()
    full = opened._engine.pool.connect()
    full.cursor().execute(f"pragma max_page_count = {pages}")
    full.close()
    with pytest.raises(UserError, match="The disk is full"):
        opened.finish(claim, replace(left_by(claim.trial), reason="x" * 10**6))
    opened._engine.dispose()
    assert opened.finish(claim, left_by(claim.trial))


def test_two_experiments_share_a_database(tmp_path):
    url = f"sqlite:///{tmp_path / 'both.db'}"
    with store.open(f"{url}#one", create=True) as one, store.open(f"{url}#two", create=True) as two:
        one.prepare(GRID, SETTINGS)
        two.prepare(GRID, replace(SETTINGS, epochs=3))
        claim = one.claim()
        one.finish(claim, left_by(claim.trial))
        assert two.records() == []
    with store.open(f"{url}#two") as two:
        assert two.settings.epochs == 3


def tpe_choices(where, n, interrupted_at=()):
    chosen = []
    with store.open(where, create=True) as opened:
        opened.prepare(GRID, SETTINGS, tpe_trials=n)
        while claim := opened.claim():
            if len(chosen) in interrupted_at and claim.deaths == 0:
                opened.release(claim, died=True)
                continue
            value = 1 - abs(claim.trial.rate - 0.3)
            opened.finish(claim, left_by(claim.trial, value))
            chosen.append(claim.trial)
        assert opened.counts() == store.Counts(0, 0, 2 * n)
    return chosen


def test_tpe_chooses_the_same_again_interrupted_or_not(tmp_path):
    chosen = tpe_choices(str(tmp_path / "a"), 12)
    assert chosen == tpe_choices(str(tmp_path / "b"), 12, interrupted_at=(3, 18))
    assert len(set(chosen)) == len(chosen) == 24
    assert all(0.1 <= trial.rate <= 1.0 for trial in chosen)
    assert {trial.batch for trial in chosen} == {10, 50}


def test_tpe_runs_the_trials_of_a_cell_one_after_another(tmp_path):
    with store.open(str(tmp_path), create=True) as opened:
        opened.prepare(GRID, SETTINGS, tpe_trials=3)
        cells = [claim.trial.cell for claim in claims_of(opened)]
        assert cells == GRID.cells()
        assert opened.counts() == store.Counts(4, 2, 0)
        with pytest.raises(UserError, match="begun with TPE over batches"):
            opened.prepare(GRID, SETTINGS)


def test_records_are_plain_json(opened, tmp_path):
    claim = opened.claim()
    opened.finish(claim, left_by(claim.trial))
    with sqlite3.connect(tmp_path / "study.db") as database:
        query = "select value_json from trial_user_attributes where key='record'"
        [(text,)] = database.execute(query).fetchall()
    assert json.loads(text)["trial"]["rate"] == claim.trial.rate
