"""Which combinations are trained on all seeds."""

from __future__ import annotations

from everypair.experiments.plan import Grid, Record
from everypair.experiments.search.finalists import blocks, finals, screening

GRID = Grid("digits", (0.1, 0.01), ("logistic",), (50, 500), (3, 4), {"logistic": (0.1, 1.0)})


def records(aucs, states=("finished",) * 8):
    trials = screening(GRID).trials()
    return [
        Record(trial, state, {}, validation_auc=auc)
        for trial, auc, state in zip(trials, aucs, states, strict=True)
    ]


def pairs(grid, imratio, seed):
    trials = [t for t in grid.trials() if (t.cell.imratio, t.cell.seed) == (imratio, seed)]
    return [(trial.batch, trial.rate) for trial in trials]


def test_the_best_of_each_imratio_are_trained_on_all_seeds():
    assert {trial.cell.seed for trial in screening(GRID).trials()} == {3}
    grid = finals(GRID, records((0.6, 0.7, 0.9, 0.8, 0.9, 0.2, 0.1, 0.95)), 2)
    for seed in (3, 4):
        assert pairs(grid, 0.1, seed) == [(500, 0.1), (500, 1.0)]
        assert pairs(grid, 0.01, seed) == [(50, 0.1), (500, 1.0)]


def test_of_equal_aucs_the_middle_of_the_grid_is_taken_and_nan_comes_last():
    grid = finals(GRID, records((0.7, 0.7, 0.7, 0.7, float("nan"), 0.5, 0.5, 0.5)), 1)
    assert pairs(grid, 0.1, 4) == pairs(grid, 0.01, 4) == [(500, 0.1)]


def test_failed_trials_do_not_take_part():
    failed = records((0.9, 0.8, 0.7, 0.6) * 2, ("failed", "finished") + ("failed",) * 6)
    grid = finals(GRID, failed, 2)
    assert pairs(grid, 0.1, 4) == [(50, 1.0)]
    assert pairs(grid, 0.01, 4) == []


def test_blocks_have_one_imratio_and_if_wanted_one_batch_size():
    assert [block.imratios for block in blocks(GRID)] == [(0.1,), (0.01,)]
    found = [(*block.imratios, *block.batches) for block in blocks(GRID, per_batch=True)]
    assert found == [(0.1, 50), (0.1, 500), (0.01, 50), (0.01, 500)]
