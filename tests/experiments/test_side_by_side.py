"""Models trained together equal models trained alone."""

from __future__ import annotations

import pytest
import torch

from everypair.experiments.data import sources, splits
from everypair.experiments.plan import Cell, Settings, Trial
from everypair.experiments.training.side_by_side import can_share_a_graph, train_together
from everypair.experiments.training.trial import train

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
TOLERANCE = {"cpu": 0.0, "cuda": 2e-3}


@pytest.fixture(scope="module")
def digits():
    data = sources.load("digits")
    return {
        seed: splits.split(data, imratio=0.1, seed=seed, protocol="corrected") for seed in (0, 1)
    }


def trials(loss="squared_hinge", optimiser="sgd", rates=(0.01, 0.1), batch=100):
    return [
        Trial(Cell("digits", 0.1, loss, optimiser, seed), batch, rate)
        for seed in (0, 1)
        for rate in rates
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("loss", "optimiser"),
    [
        ("squared_hinge", "sgd"),
        ("squared_hinge", "adam"),
        ("logistic", "momentum"),
        ("aucm", "pesg"),
    ],
)
@pytest.mark.parametrize("protocol", ["corrected", "paper"])
def test_training_together_equals_training_alone(digits, loss, optimiser, protocol, device):
    settings = Settings(model="mlp", epochs=3, protocol=protocol)
    together = trials(loss, optimiser)
    epochs = []
    found = train_together(
        together,
        settings,
        [digits[trial.cell.seed].to(device) for trial in together],
        device=device,
        on_epoch=lambda trial, row: epochs.append((trial, row["epoch"])),
    )
    assert len(epochs) == 4 * len(together)
    for trial, (record, state) in zip(together, found, strict=True):
        alone, same_state = train(trial, settings, digits[trial.cell.seed], device=device)
        assert record.trial == trial
        assert record.n_one_class == alone.n_one_class
        for name, column in alone.history.items():
            assert record.history[name] == pytest.approx(column, abs=TOLERANCE[device]), name
        assert state.keys() == same_state.keys()


def test_a_diverged_trial_does_not_change_the_others(digits):
    settings = Settings(model="linear", epochs=3)
    together = trials("square", rates=(0.001, 1e6))
    split = [digits[trial.cell.seed] for trial in together]
    found = [record for record, _ in train_together(together, settings, split, device="cpu")]
    assert [record.state for record in found] == ["finished", "diverged"] * 2
    alone, _ = train(together[1], settings, split[1])
    assert found[1].diverged_at == alone.diverged_at
    assert found[2].history == train(together[2], settings, split[2])[0].history


def test_optimisers_that_cannot_share_a_graph():
    able = {name: can_share_a_graph(trials(optimiser=name)[0]) for name in ("sgd", "lbfgs", "sag")}
    assert able == {"sgd": True, "lbfgs": False, "sag": False}
