"""A trial that failed is run again by the next run of the same command, once in all."""

from __future__ import annotations

import math

import pytest

from everypair.experiments.plan import Grid, Record, Settings
from everypair.experiments.search import store

GRID = Grid("digits", (0.1,), ("square",), (50,), (0,), rates={"square": (0.1, 1.0)})


def prepared(folder, tpe_trials=None):
    opened = store.open(str(folder), create=True)
    opened.prepare(GRID, Settings(), tpe_trials=tpe_trials)
    return opened


def finish(opened, state="finished"):
    claim = opened.claim()
    value = 0.9 if state == "finished" else math.nan
    opened.finish(claim, Record(claim.trial, state, {}, validation_auc=value))
    return claim.trial


@pytest.mark.parametrize("tpe_trials", [None, 2])
def test_a_failed_trial_waits_again_and_a_finished_one_does_not(tmp_path, tpe_trials):
    with prepared(tmp_path, tpe_trials) as opened:
        failed = finish(opened, "failed")
        finish(opened)
        assert opened.counts() == store.Counts(0, 0, 2)
    with prepared(tmp_path, tpe_trials) as opened:
        assert opened.counts() == store.Counts(1, 0, 1)
        assert len(opened.records()) == 1
        assert finish(opened) == failed
        assert [record.state for record in opened.records()] == ["finished"] * 2
    with prepared(tmp_path, tpe_trials) as opened:
        assert opened.counts() == store.Counts(0, 0, 2)


def test_a_diverged_trial_is_a_result_and_stays(tmp_path):
    with prepared(tmp_path) as opened:
        finish(opened, "diverged")
    with prepared(tmp_path) as opened:
        assert opened.counts() == store.Counts(1, 0, 1)
        assert [record.state for record in opened.records()] == ["diverged"]


def test_of_two_runs_that_start_at_once_one_runs_a_failed_trial_again(tmp_path):
    with prepared(tmp_path) as opened:
        finish(opened, "failed")
        finish(opened)
    with prepared(tmp_path) as one, prepared(tmp_path) as two:
        finish(two, "failed")
        assert one.claim() is None
        assert one.counts() == store.Counts(0, 0, 2)
        assert [record.state for record in one.records()] == ["failed", "finished"]


def test_a_second_attempt_that_is_interrupted_waits_again(tmp_path):
    with prepared(tmp_path) as opened:
        failed = finish(opened, "failed")
        finish(opened)
    with prepared(tmp_path) as opened:
        opened.claim()  # the store is closed while it runs
    with prepared(tmp_path) as opened:
        assert opened.counts() == store.Counts(1, 0, 1)
        assert finish(opened) == failed
