"""Presets are fair: every loss has equally many rates over an equally wide range."""

from __future__ import annotations

import math

import pytest

from everypair.experiments.data import sources
from everypair.experiments.errors import UserError
from everypair.experiments.presets import PRESETS, paper_grid, with_losses
from everypair.experiments.training import optimisers
from everypair.experiments.training.models import MODELS
from everypair.experiments.training.objectives import OBJECTIVES

LIBRARY_LOSSES = {
    "squared_hinge",
    "square",
    "linear_hinge",
    "logistic",
    "weighted_logistic",
    "aucm",
    "pairwise_logistic",
    "pairwise_sigmoid",
    "solam",
    "effective_number",
    "ldam",
    "oversampling",
    "undersampling",
    "smote",
    "adasyn",
}


@pytest.mark.parametrize("name", PRESETS)
def test_every_loss_has_as_many_rates_as_far_apart(name):
    rates = PRESETS[name].grid.rates
    assert set(rates) == LIBRARY_LOSSES
    assert len({len(of_loss) for of_loss in rates.values()}) == 1
    widths = [math.log10(max(of_loss) / min(of_loss)) for of_loss in rates.values()]
    assert max(widths) - min(widths) < 0.01


@pytest.mark.parametrize("name", PRESETS)
def test_names_are_known_and_can_be_combined(name):
    grid, settings = PRESETS[name].grid, PRESETS[name].settings
    assert name in sources.SOURCES
    assert settings.model in MODELS
    # The help of `everypair experiment` names these defaults.
    shared = (settings.scores, settings.margin, settings.sampler, settings.protocol)
    assert shared == ("sigmoid", None, "shuffle", "corrected")
    for cell in grid.cells():
        for batch in grid.batches:
            optimisers.check(cell.loss, cell.optimiser, batch=batch)


def test_the_digits_preset_has_the_documented_size():
    grid = PRESETS["digits"].grid
    assert grid.losses == ("squared_hinge", "logistic", "aucm")
    assert grid.imratios == (0.1, 0.01)
    assert (len(grid.batches), len(grid.seeds), len(grid.rates["logistic"])) == (2, 3, 3)


def test_the_paper_grid_has_the_values_of_the_paper():
    grid = paper_grid("stl10")
    assert grid.batches == (10, 50, 100, 500, 1000, 5000)
    assert grid.rates["squared_hinge"][:3] == (0.0001, 0.000316, 0.001)
    assert (grid.rates["squared_hinge"][-1], grid.rates["aucm"][-1]) == (0.1, 100.0)
    assert [len(grid.rates[loss]) for loss in grid.losses] == [7, 13, 13]
    assert len(grid.seeds) == 5


def test_optimisers_have_their_own_rates():
    base = PRESETS["digits"].grid
    grid = with_losses(base, ["square", "aucm"], ["sgd", "adam"])
    rates = {(cell.loss, cell.optimiser): grid.rates_of(cell) for cell in grid.cells()}
    assert set(rates) == {("square", "sgd"), ("square", "adam"), ("aucm", "pesg")}
    assert rates["square", "sgd"] == base.rates["square"]
    assert max(rates["square", "adam"]) < 0.1
    assert len({len(of_loss) for of_loss in rates.values()}) == 1
    assert with_losses(base, ["square"], ["lbfgs"]).batches == (0,)
    grid = with_losses(base, ["square"], ["adam"], square=(0.5,))
    assert grid.rates_of(grid.cells()[0]) == (0.5,)


def test_an_unknown_loss_needs_rates():
    with pytest.raises(UserError, match="--rate mine="):
        with_losses(PRESETS["digits"].grid, ["mine"])
    assert with_losses(PRESETS["digits"].grid, ["mine"], mine=(0.1,)).rates == {"mine": (0.1,)}


def test_all_losses_of_the_presets_exist():
    assert set(OBJECTIVES) >= LIBRARY_LOSSES
