"""A trial equals a training loop written by hand, and its record is right."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import auc as area_under

import everypair as ep
from everypair.experiments.data.augment import Augmentation
from everypair.experiments.errors import UserError
from everypair.experiments.plan import Record, Settings
from everypair.experiments.seeds import derived
from everypair.experiments.training import measuring
from everypair.experiments.training import trial as trial_module
from everypair.experiments.training.batches import Batches
from everypair.experiments.training.measuring import scores_of, thinned_roc
from everypair.experiments.training.models import MODELS, build
from everypair.experiments.training.objectives import OBJECTIVES
from everypair.experiments.training.trial import train
from everypair.torch import pair_loss
from tests.experiments.parts import clouds, images, trial

SETTINGS = Settings(model="mlp", epochs=3)
PAIRINGS = [(loss, optimiser) for loss, one in OBJECTIVES.items() for optimiser in one.optimisers]
RATES = {"sgd": 0.1, "momentum": 0.03, "adam": 0.01, "lbfgs": 1.0, "sag": 0.2, "pesg": 1.0}
RATES |= {"solam": 0.3}


@pytest.fixture(scope="module")
def split():
    return clouds()


def same(a, b):
    """Return whether two results are equal, except for the time."""
    (record, state), (other, other_state) = a, b
    plain, other_plain = ({**r.to_dict(), "seconds": 0} for r in (record, other))
    return plain == other_plain and all(torch.equal(state[k], other_state[k]) for k in state)


def test_equals_the_loop_written_by_hand(split):
    record, _ = train(trial(batch=50, rate=0.05), SETTINGS, split)

    model = build("mlp", (5,), sigmoid=False, seed=derived(0, "weights"))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    X, y = split.subtrain.inputs, split.subtrain.labels
    batches = Batches(y, None, size=50, settings=SETTINGS, seed=0)
    for epoch in (1, 2, 3):
        for batch in batches.epoch(epoch):
            optimiser.zero_grad()
            pair_loss(model(X[batch.rows]), y[batch.rows]).backward()
            optimiser.step()
        for name, part in split.parts().items():
            scores, labels = model(part.inputs).detach().numpy(), part.labels.numpy()
            if name != "test":
                assert record.history[f"{name}_auc"][epoch] == ep.auc(scores, labels)
                expected = ep.pair_loss(scores, labels)
                assert record.history[f"{name}_loss"][epoch] == pytest.approx(expected, rel=1e-6)
            elif epoch == record.best_epoch:
                assert record.test_auc == ep.auc(scores, labels)


@pytest.mark.parametrize("scores", ["raw", "sigmoid"])
def test_schedule_and_warm_start_equal_the_loop_written_by_hand(split, scores):
    settings = replace(SETTINGS, scores=scores, schedule="cosine", warm_start=1)
    _, state = train(trial(optimiser="momentum", batch=50, rate=0.05), settings, split)

    model = build("mlp", (5,), sigmoid=False, seed=derived(0, "weights"))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    X, y = split.subtrain.inputs, split.subtrain.labels
    batches = Batches(y, None, size=50, settings=settings, seed=0)
    aucs, states = [], []
    for epoch, rate in ((1, 0.05), (2, 0.05 * 0.75), (3, 0.05 * 0.25)):
        optimiser.param_groups[0]["lr"] = rate
        for batch in batches.epoch(epoch):
            optimiser.zero_grad()
            outputs, labels = model(X[batch.rows]), y[batch.rows]
            if epoch == 1:
                loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs, labels)
            else:
                loss = pair_loss(outputs.sigmoid() if scores == "sigmoid" else outputs, labels)
            loss.backward()
            optimiser.step()
        part = split.validation
        aucs.append(ep.auc(model(part.inputs).detach().numpy(), part.labels.numpy()))
        states.append({name: w.clone() for name, w in model.state_dict().items()})
    for name, weights in states[int(np.argmax(aucs))].items():
        torch.testing.assert_close(state[name], weights)


@pytest.mark.parametrize(("loss", "optimiser"), PAIRINGS)
def test_every_loss_learns_with_every_optimiser_it_allows(loss, optimiser, split):
    if package := OBJECTIVES[loss].package:
        pytest.importorskip(package[0])
    batch = 0 if optimiser == "lbfgs" else 50
    one = trial(loss, optimiser, batch=batch, rate=RATES[optimiser])
    record, state = train(one, SETTINGS, split)
    assert record.state == "finished"
    assert record.trial == one
    assert record.history["subtrain_auc"][-1] > record.history["subtrain_auc"][0] + 0.1
    assert state


def test_results_follow_from_the_seed_and_the_global_generator_is_unchanged(split):
    before = torch.random.get_rng_state()
    first, again, other = (train(trial(seed=s), SETTINGS, split) for s in (0, 0, 1))
    assert same(first, again)
    assert not same(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_models_with_dropout_are_repeatable(split, monkeypatch):
    monkeypatch.setitem(
        MODELS,
        "dropout",
        lambda shape: torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(*shape, 1)),
    )
    settings = Settings(model="dropout", epochs=2)
    first = train(trial(), settings, split)
    torch.rand(1)
    assert same(first, train(trial(), settings, split))


def test_initial_weights_do_not_depend_on_loss_rate_and_batch(split):
    settings = Settings(epochs=0)
    states = [
        train(trial(loss, batch=batch, rate=rate), settings, split)[1]
        for loss, batch, rate in [("square", 10, 0.1), ("logistic", 0, 3.0)]
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_keeps_the_weights_of_the_first_best_epoch(split):
    record, state = train(trial(rate=0.3, batch=20), Settings(epochs=8), split)
    validation = record.history["validation_auc"]
    assert record.best_epoch == int(np.argmax(validation))
    assert record.best_epoch < 8  # otherwise the best epoch would be the last
    assert record.validation_auc == max(validation)
    model = build("mlp", (5,), sigmoid=False, seed=99)
    model.load_state_dict(state)
    for name, reached in (("validation", record.validation_auc), ("test", record.test_auc)):
        part = split.parts()[name]
        scores = scores_of(model, part.inputs).detach().numpy()
        assert ep.auc(scores, part.labels.numpy()) == reached
    area = area_under(*record.roc)
    assert area == pytest.approx(record.test_auc, abs=0.002)


def test_test_scores_that_are_not_finite_leave_no_epoch_to_choose(split):
    inputs = split.test.inputs.clone()
    inputs[0] = float("inf")
    broken = replace(split, test=replace(split.test, inputs=inputs))
    record, _ = train(trial(), SETTINGS, broken)
    assert (record.state, record.best_epoch) == ("diverged", -1)
    assert np.isnan([record.validation_auc, record.test_auc]).all()
    assert record.roc == ([], [])


def test_the_test_part_does_not_influence_the_choice(split):
    flipped = split.test.__class__(split.test.inputs, 1 - split.test.labels)
    other_split = split.__class__(split.subtrain, split.validation, flipped)
    record, state = train(trial(), SETTINGS, split)
    other, other_state = train(trial(), SETTINGS, other_split)
    assert other.best_epoch == record.best_epoch
    assert other.test_auc == pytest.approx(1 - record.test_auc)
    assert all(torch.equal(state[name], other_state[name]) for name in state)


def test_a_record_survives_json(split):
    record, _ = train(trial(), SETTINGS, split)
    again = Record.from_dict(json.loads(json.dumps(record.to_dict())))
    assert again == record
    assert {len(column) for column in record.history.values()} == {4}
    assert record.history["epoch"] == [0, 1, 2, 3]
    assert record.seconds > 0
    assert record.device == "cpu"


@pytest.mark.parametrize(
    ("loss", "optimiser", "batch"),
    [("squared_hinge", "sgd", 50), ("square", "momentum", 50), ("aucm", "pesg", 50)],
)
def test_divergence_is_recorded_with_its_epoch_and_advice(loss, optimiser, batch, split):
    seen = []
    one = trial(loss, optimiser, batch=batch, rate=1e30)
    record, state = train(one, SETTINGS, split, on_epoch=seen.append)
    assert record.state == "diverged"
    assert record.diverged_at == 1
    assert record.reason.endswith("take a rate smaller than 1e+30, for example 1e+29")
    assert record.best_epoch == -1  # the untrained network does not count
    assert record.history["epoch"] == [0] == [row["epoch"] for row in seen]
    assert math.isnan(record.test_auc)
    assert not state


@pytest.mark.parametrize("optimiser", ["sgd", "lbfgs"])
def test_a_full_batch_in_chunks_equals_one_at_once(optimiser, split, monkeypatch):
    # With smaller rates, the steps of L-BFGS amplify rounding errors to more than a percent.
    one = trial("squared_hinge", optimiser, batch=0, rate=0.2)
    at_once, _ = train(one, SETTINGS, split)
    monkeypatch.setattr(trial_module, "CHUNK_ROWS", 30)
    in_chunks, _ = train(one, SETTINGS, split)
    for name, column in at_once.history.items():
        # An AUC may differ by a few pairs that rounding errors tie or swap.
        room = {"abs": 1e-3} if name.endswith("_auc") else {"rel": 1e-4}
        assert in_chunks.history[name] == pytest.approx(column, **room), name
    diverged, _ = train(replace(one, rate=1e30), SETTINGS, split)
    assert optimiser == "lbfgs" or diverged.state == "diverged"


def test_lbfgs_with_a_huge_rate_ends_normally(split):
    record, _ = train(trial(optimiser="lbfgs", batch=0, rate=1e30), SETTINGS, split)
    assert record.state in ("finished", "diverged")


def test_inputs_that_are_not_finite_give_an_empty_history(split):
    broken = clouds()
    broken.validation.inputs[0, 0] = torch.nan
    record, state = train(trial(), SETTINGS, broken)
    assert (record.state, record.diverged_at, record.best_epoch) == ("diverged", 0, -1)
    assert math.isnan(record.validation_auc)
    assert record.history == {}
    assert state == {}


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_exception_in_on_epoch_ends_the_trial(error, split):
    def stop(row):
        if row["epoch"] == 1:
            raise error

    with pytest.raises(error):
        train(trial(), SETTINGS, split, on_epoch=stop)


def test_loss_and_auc_use_groups():
    split = clouds(groups=20)
    record, state = train(trial(rate=0.1), SETTINGS, split)
    model = build("mlp", (5,), sigmoid=False, seed=0)
    model.load_state_dict(state)
    part = split.validation
    scores = model(part.inputs).detach().numpy()
    groups = part.groups.numpy()
    assert ep.auc(scores, part.labels.numpy(), groups=groups) == record.validation_auc
    loss = ep.pair_loss(scores, part.labels.numpy(), groups=groups)
    assert record.history["validation_loss"][record.best_epoch] == pytest.approx(loss, rel=1e-6)
    assert ep.auc(scores, part.labels.numpy()) != record.validation_auc


def test_batches_of_one_class_are_counted_and_have_no_gradient():
    split = clouds(share=0.02)
    one, settings = trial(batch=1, rate=0.1), Settings(epochs=1)
    record, _ = train(one, settings, split)
    assert record.n_one_class == 400
    assert record.history["subtrain_loss"][0] == record.history["subtrain_loss"][1]


def test_protocol_paper_applies_two_sigmoids_and_skips_batches_without_a_positive():
    split = clouds(share=0.02)
    settings = Settings(epochs=1, protocol="paper", model="linear")
    record, _ = train(trial("logistic", batch=1, rate=0.1), settings, split)
    model = build("linear", (5,), sigmoid=True, seed=derived(0, "weights"))
    y = split.subtrain.labels
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    before = loss(model(split.subtrain.inputs), y).item()
    assert record.history["subtrain_loss"][0] == pytest.approx(before)
    batches = Batches(y, None, size=1, settings=settings, seed=0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    drawn = list(batches.epoch(1))
    assert len(drawn) == 8
    for batch in drawn:
        optimiser.zero_grad()
        loss(model(split.subtrain.inputs[batch.rows]), batch.labels).backward()
        optimiser.step()
    after = loss(model(split.subtrain.inputs), y).item()
    assert record.history["subtrain_loss"][1] == pytest.approx(after)


def test_stratified_batches_learn_from_few_positives():
    settings = Settings(epochs=2, sampler="stratified", model="linear")
    record, _ = train(trial(batch=10, rate=0.1), settings, clouds(share=0.02, apart=3.0))
    assert record.n_one_class == 0
    assert record.history["subtrain_auc"][-1] > 0.9


def test_images_are_augmented_in_the_parts_that_the_split_names():
    settings = Settings(model="resnet20", epochs=1)
    histories = []
    for augmentation in (Augmentation(), Augmentation(True), Augmentation(True, True)):
        record, state = train(trial(batch=20), settings, images(augmentation=augmentation))
        again, _ = train(trial(batch=20), settings, images(augmentation=augmentation))
        assert record.history == again.history
        assert state["body.conv.weight"].shape == (16, 3, 3, 3)
        histories.append(record.history["subtrain_loss"])
    plain, trained, measured = histories
    assert plain[0] == trained[0]  # before training only the measurement can differ
    assert plain[1] != trained[1]
    assert trained[0] != measured[0]


def test_scores_do_not_depend_on_the_chunk_size(monkeypatch):
    part = images().subtrain
    model = build("resnet20", (3, 8, 8), sigmoid=False, seed=0).eval()
    with torch.no_grad():
        whole = scores_of(model, part.inputs)
        monkeypatch.setitem(measuring.CHUNK_VALUES, "cpu", 7 * 3 * 8 * 8)
        torch.testing.assert_close(scores_of(model, part.inputs), whole)


def test_a_thinned_roc_curve_keeps_its_area_and_ends():
    rng = np.random.default_rng(0)
    positive = rng.random(20_000) < 0.3
    scores = (rng.standard_normal(20_000) + positive).astype(np.float32)
    fpr, tpr = thinned_roc(scores, positive)
    assert len(fpr) == len(tpr) <= measuring.ROC_POINTS
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    assert area_under(fpr, tpr) == pytest.approx(ep.auc(scores, positive), abs=1e-3)


def test_combinations_that_do_not_work_are_refused(split):
    for one in (trial("aucm", "sgd"), trial(optimiser="lbfgs"), trial("no such loss")):
        with pytest.raises(UserError):
            train(one, SETTINGS, split)
    with pytest.raises(UserError, match="resnet20"):
        train(trial(), Settings(model="resnet20"), split)
    with pytest.raises(UserError, match="--warm-start"):
        train(trial(optimiser="sag"), replace(SETTINGS, warm_start=1), split)
