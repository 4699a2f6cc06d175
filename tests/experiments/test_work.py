"""How a worker runs trials, one by one and side by side, and on which data."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from everypair.experiments.data import sources
from everypair.experiments.errors import UserError
from everypair.experiments.plan import Cell, Settings, TableFile, Trial
from everypair.experiments.search.work import GRAPH_TRIALS, SideBySide, Training, work_for
from everypair.experiments.training import saved, winner

SETTINGS = Settings(model="linear", epochs=2)


def trial(seed=0, rate=0.01, optimiser="sgd", batch=100):
    return Trial(Cell("digits", 0.1, "squared_hinge", optimiser, seed), batch, rate)


def test_the_device_decides_the_work_and_the_number_of_processes():
    work, processes = work_for(SETTINGS, "cpu", None)
    assert type(work) is Training
    assert work.width == 1
    assert processes >= 1
    work, processes = work_for(SETTINGS, "cuda:1", None)
    assert type(work) is SideBySide
    assert (work.width, processes) == (GRAPH_TRIALS, 1)
    assert pickle.loads(pickle.dumps(work)) == work
    work, _ = work_for(SETTINGS, "cuda", None, together=8, mixed=True)
    assert (work.width, work.mixed) == (8, True)


@pytest.mark.parametrize("mixed", [False, True])
def test_trials_of_one_graph_have_one_batch_size(mixed):
    key = SideBySide(SETTINGS, mixed=mixed).group_key
    assert key(trial()) == key(trial(seed=1, rate=0.1))
    assert (key(trial()) == key(trial(optimiser="adam"))) is mixed
    assert key(trial()) != key(trial(batch=50))
    assert key(trial(optimiser="sag")) != key(trial(seed=1, optimiser="sag"))
    alone = Training(SETTINGS).group_key
    assert alone(trial()) != alone(trial(seed=1))


@pytest.mark.parametrize("n", [1, 3])
def test_side_by_side_gives_the_same_records_as_one_by_one(tmp_path, n):
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


@pytest.fixture
def table(tmp_path):
    """A table, the settings of an experiment that began on it, and one of its trials."""
    path = tmp_path / "my.csv"
    lines = [f"{k},{k % 7},{'yes' if k % 5 == 0 else 'no'}" for k in range(200)]
    path.write_text("\n".join(["a,b,fraud", *lines]))
    file = TableFile(str(path), "fraud")
    fingerprint = sources.load("table", table=file).fingerprint
    settings = replace(
        SETTINGS, epochs=1, table=replace(file, positive="yes"), fingerprint=fingerprint
    )
    return path, settings, Trial(Cell("table", 0.0, "logistic", "sgd", 0), 100, 0.1)


def test_a_worker_trains_on_the_table_that_the_experiment_began_with(table):
    _, settings, trial = table
    [record] = Training(settings)([trial], lambda row: None)
    assert record.state == "finished"


def test_a_table_that_was_edited_during_the_run_is_refused(table):
    path, settings, trial = table
    path.write_text(path.read_text().replace("\n7,0,no", "\n7,1,no"))
    with pytest.raises(UserError, match=r"my.csv has changed since the experiment began .* --out"):
        list(Training(settings)([trial], lambda row: None))
