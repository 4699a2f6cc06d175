"""Models trained together equal models trained alone."""

from __future__ import annotations

import pytest
import torch

from everypair.experiments.data import sources, splits
from everypair.experiments.data.augment import Augmentation
from everypair.experiments.plan import Cell, Settings, Trial
from everypair.experiments.training import prepared
from everypair.experiments.training.side_by_side import can_share_a_graph, train_together
from everypair.experiments.training.trial import train
from tests.experiments.parts import images

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
TOLERANCE = {"cpu": 0.0, "cuda": 2e-3}


@pytest.fixture(scope="module")
def digits():
    data = sources.load("digits")
    return {
        seed: splits.split(data, imratio=0.1, seed=seed, protocol="corrected") for seed in (0, 1)
    }


def trials(loss="squared_hinge", optimiser="sgd", rates=(0.01, 0.1), batch=100, imratio=0.1):
    return [
        Trial(Cell("digits", imratio, loss, optimiser, seed), batch, rate)
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
        ("solam", "solam"),
        ("ldam", "sgd"),  # which has other weights in the last epoch
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
        assert record.test_auc == pytest.approx(alone.test_auc, abs=TOLERANCE[device])
        for name, column in alone.history.items():
            assert record.history[name] == pytest.approx(column, abs=TOLERANCE[device]), name
        assert state.keys() == same_state.keys()


def test_batches_of_one_class_are_counted_once_for_all_trials_that_share_them():
    data = sources.load("digits")
    rare = [splits.split(data, imratio=0.01, seed=k, protocol="corrected") for k in (0, 1)]
    settings = Settings(model="linear", epochs=3)
    together = trials(batch=50, imratio=0.01)
    split = [rare[trial.cell.seed] for trial in together]
    found = [record for record, _ in train_together(together, settings, split, device="cpu")]
    alone = [train(trial, settings, own)[0] for trial, own in zip(together, split, strict=True)]
    assert [record.n_one_class for record in found] == [record.n_one_class for record in alone]
    assert min(record.n_one_class for record in alone) > 0


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


@pytest.mark.parametrize("device", DEVICES)
def test_a_sample_of_subtrain_is_measured_until_the_last_epoch(digits, device):
    together = trials("logistic")
    split = [digits[trial.cell.seed].to(device) for trial in together]
    whole, sampled = (
        train_together(together, Settings(epochs=3, subtrain_sample=n), split, device=device)
        for n in (0, 200)
    )
    for (one, _), (other, _) in zip(whole, sampled, strict=True):
        same = TOLERANCE[device]
        assert other.test_auc == pytest.approx(one.test_auc, abs=same)
        for name in ("validation_auc", "validation_loss"):
            assert other.history[name] == pytest.approx(one.history[name], abs=same)
        for name in ("subtrain_auc", "subtrain_loss"):
            *before, last = zip(one.history[name], other.history[name], strict=True)
            assert last[0] == pytest.approx(last[1], abs=same)
            assert all(a != b and abs(a - b) < 0.1 for a, b in before)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", ["mlp", "resnet20"])
def test_prepared_images_equal_those_of_single_batches(model, device, monkeypatch):
    split = images(augmentation=Augmentation(subtrain=True)).to(device)
    settings = Settings(model=model, epochs=2)
    together = trials("logistic", batch=20)
    # Three batches are prepared at once, and the last batch of an epoch is shorter.
    values = 3 * 20 * split.subtrain.inputs[0].numel()
    monkeypatch.setattr(prepared, "PREPARED_VALUES", values)
    found = train_together(together, settings, [split] * len(together), device=device)
    for trial, (record, _) in zip(together, found, strict=True):
        alone, _ = train(trial, settings, split, device=device)
        for name, column in alone.history.items():
            assert record.history[name] == pytest.approx(column, abs=max(1e-6, TOLERANCE[device]))


@pytest.mark.parametrize("device", DEVICES)
def test_batches_of_several_sizes(digits, device):
    settings = Settings(model="mlp", epochs=3, sampler="stratified")
    together = trials("squared_hinge", batch=60)
    split = [digits[trial.cell.seed].to(device) for trial in together]
    for trial, own, (record, _) in zip(
        together, split, train_together(together, settings, split, device=device), strict=True
    ):
        alone, _ = train(trial, settings, own, device=device)
        column = alone.history["validation_loss"]
        assert record.history["validation_loss"] == pytest.approx(column, abs=TOLERANCE[device])


@pytest.mark.parametrize("device", DEVICES)
def test_bfloat16_changes_the_results_little(digits, device):
    together = trials("logistic", rates=(0.03,))
    split = [digits[trial.cell.seed].to(device) for trial in together]
    exact, rounded = (
        train_together(together, Settings(epochs=3, precision=precision), split, device=device)
        for precision in ("float32", "bf16")
    )
    for (one, _), (other, state) in zip(exact, rounded, strict=True):
        assert {w.dtype for w in state.values()} == {torch.float32}
        assert one.history["validation_loss"] != other.history["validation_loss"]
        for name, column in one.history.items():
            assert other.history[name] == pytest.approx(column, abs=0.02), name


def test_the_compiled_form_of_a_network_is_trained(digits, monkeypatch):
    compile_fully = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda model, dynamic: compile_fully(model, backend="eager")
    )
    together = trials("squared_hinge", rates=(0.03,))
    split = [digits[trial.cell.seed] for trial in together]
    plain, compiled = (
        train_together(together, Settings(epochs=2), split, device="cpu", compiled=compiled)
        for compiled in (False, True)
    )
    for (one, _), (other, _) in zip(plain, compiled, strict=True):
        for name, column in one.history.items():
            assert other.history[name] == pytest.approx(column, abs=1e-5), name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own modules, by version
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32")  # the compiler advises it; we want float32
@pytest.mark.skipif(not torch.cuda.is_available(), reason="compilation takes minutes on a CPU")
def test_compiled_networks_train_alike_on_cuda(digits):
    together = trials("squared_hinge", rates=(0.03,))
    split = [digits[trial.cell.seed].to("cuda") for trial in together]
    plain, compiled = (
        train_together(together, Settings(epochs=3), split, device="cuda", compiled=compiled)
        for compiled in (False, True)
    )
    for (one, _), (other, _) in zip(plain, compiled, strict=True):
        for name, column in one.history.items():
            assert other.history[name] == pytest.approx(column, abs=2e-3), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("loss", "optimiser"), [("squared_hinge", "momentum"), ("aucm", "pesg")])
def test_schedule_and_warm_start_together_equal_those_alone(digits, loss, optimiser, device):
    settings = Settings(scores="sigmoid", epochs=4, schedule="cosine", warm_start=2)
    together = trials(loss, optimiser)
    split = [digits[trial.cell.seed].to(device) for trial in together]
    for trial, own, (record, _) in zip(
        together, split, train_together(together, settings, split, device=device), strict=True
    ):
        alone, _ = train(trial, settings, own, device=device)
        for name, column in alone.history.items():
            assert record.history[name] == pytest.approx(column, abs=TOLERANCE[device]), name
