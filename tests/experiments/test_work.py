"""What a worker does with trials, one by one and side by side."""

from __future__ import annotations

import pickle

import pytest

from everypair.experiments.plan import Cell, Settings, Trial
from everypair.experiments.search.work import TOGETHER, SideBySide, Training, work_for
from everypair.experiments.training import saved, winner

SETTINGS = Settings(model="linear", epochs=2)


def trial(seed=0, rate=0.01, optimiser="sgd", batch=100):
    return Trial(Cell("digits", 0.1, "squared_hinge", optimiser, seed), batch, rate)


def test_what_suits_a_device():
    work, processes = work_for(SETTINGS, "cpu", None)
    assert type(work) is Training
    assert work.width == 1
    assert processes >= 1
    work, processes = work_for(SETTINGS, "cuda:1", None)
    assert type(work) is SideBySide
    assert (work.width, processes) == (TOGETHER, 1)
    assert pickle.loads(pickle.dumps(work)) == work


def test_trials_of_one_graph_differ_in_seed_and_rate():
    together = SideBySide(SETTINGS).together
    assert together(trial()) == together(trial(seed=1, rate=0.1))
    assert together(trial()) != together(trial(batch=50))
    assert together(trial(optimiser="sag")) != together(trial(seed=1, optimiser="sag"))
    alone = Training(SETTINGS).together
    assert alone(trial()) != alone(trial(seed=1))


@pytest.mark.parametrize("n", [1, 3])
def test_side_by_side_leaves_what_one_by_one_leaves(tmp_path, n):
    trials = [trial(seed=seed % 2, rate=0.01 * (1 + seed)) for seed in range(n)]
    epochs = []
    works = (Training(SETTINGS, folder=str(tmp_path / "a")),
             SideBySide(SETTINGS, folder=str(tmp_path / "b")))  # fmt: skip
    alone, together = ([*work(trials, epochs.append)] for work in works)
    assert len(epochs) == 2 * 3 * n
    assert [record.history for record in alone] == [record.history for record in together]
    for one, other in zip(alone, together, strict=True):
        models = [saved.load(winner.path_of(tmp_path / folder, one.trial)) for folder in "ab"]
        assert models[0].trial == models[1].trial == other.trial
