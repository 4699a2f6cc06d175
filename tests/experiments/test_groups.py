"""Which trials are run at once, and how many of them before a deadline."""

from __future__ import annotations

import time

import pytest

from everypair.experiments.plan import Record
from everypair.experiments.search import store
from everypair.experiments.search._groups import Groups
from tests.experiments import stand_in


@pytest.fixture
def opened(tmp_path):
    with store.open(str(tmp_path), create=True) as opened:
        yield opened


def groups(opened, *, width, left=None, seconds=None, mixed=False, **knobs):
    """Return groups of a grid with 12 trials of each loss that have `left` seconds."""
    knobs = {"seeds": 3, "rates": (0.1, 0.2, 0.3, 0.4), "batches": (10,), **knobs}
    grid = stand_in.grid("square", "logistic", **knobs)
    opened.prepare(grid, stand_in.SETTINGS)
    deadline = {} if left is None else {"deadline": time.monotonic() + left}
    work = stand_in.StandIn("", width=width, mixed=mixed)
    found = Groups(opened, work, **deadline)
    if seconds:
        found.learn(Record(grid.trials()[0], "finished", {}, seconds=seconds))
    return found


def all_sizes(found):
    return [len(claims) for claims in iter(found.claim, [])]


@pytest.mark.parametrize(
    ("width", "sizes"), [(1, [1] * 24), (5, [4] * 6), (8, [6] * 4), (11, [6] * 4), (12, [12] * 2)]
)
def test_groups_have_nearly_the_same_size(opened, width, sizes):
    assert all_sizes(groups(opened, width=width)) == sizes


def test_losses_are_mixed_until_that_is_switched_off(opened):
    found = groups(opened, width=18, mixed=True)
    first = found.claim()
    assert {claim.trial.cell.loss for claim in first} == {"square", "logistic"}
    found.mixed = False
    assert all_sizes(found) == [8, 4]  # logistic, square


@pytest.mark.parametrize(("left", "size"), [(100.0, 6), (5.5, 5), (4.5, 4), (3.5, 0), (-1.0, 0)])
def test_no_more_trials_are_started_than_end_before_the_deadline(opened, left, size):
    found = groups(opened, width=8, left=left, seconds=1.0)
    assert len(found.claim()) == size
    assert found.is_out_of_time() == (size == 0 or left < 4.0)


def test_without_an_earlier_trial_there_is_no_estimate(opened):
    found = groups(opened, width=8, left=0.5)
    assert len(found.claim()) == 6
    found.learn(Record(stand_in.grid("square", batches=(10,)).trials()[0], "failed", {}))
    assert not found.is_out_of_time()


def test_trials_of_another_batch_size_may_have_time(opened):
    found = groups(opened, width=1, left=10.0, seconds=60.0, batches=(10, 50))
    [claim] = found.claim()
    assert claim.trial.batch == 50


def test_tpe_trials_are_not_grouped_by_the_batch_size_that_is_not_chosen_yet(opened):
    grid = stand_in.grid("square", seeds=3)
    opened.prepare(grid, stand_in.SETTINGS, tpe_trials=2)
    found = Groups(opened, stand_in.StandIn("", width=8))
    assert all_sizes(found) == [1, 1, 1]  # the second trial of a seed waits for the first


def test_a_prepared_grid_without_trials_has_none(opened):
    opened.prepare(stand_in.grid("square"), stand_in.SETTINGS)
    opened.prepare(stand_in.grid("square", rates=()), stand_in.SETTINGS)
    assert opened.counts() == (0, 0, 0)
    assert opened.waiting() == []
