"""What the optimisers SAG and PESG have in common: groups, closures, saved states, errors."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

from everypair.torch import PESG, SAG, AUCMLoss

from .test_large_batch import X, network, y

KINDS = [(SAG, {}), (PESG, {}), (PESG, {"epoch_decay": 0.0})]
for_every_optimizer = pytest.mark.parametrize(("kind", "options"), KINDS)


def training(kind, options, lr=0.02):
    """Return a network, a loss and an optimiser, which does not move the first layer."""
    model, loss = nn.Sequential(*network(), nn.Sigmoid()), AUCMLoss()
    first, last = model[0].parameters(), model[2].parameters()
    groups = [{"params": first, "lr": 0.0}, {"params": last}]
    needed = {"n_batches": 3} if kind is SAG else {"loss": loss, "seed": 3}
    return model, loss, kind(groups, lr=lr, **needed, **options)


def trained(model, loss, optimizer, steps):
    """Return the value of each step and the parameters after the last."""
    values = []
    for step in steps:
        rows = slice(100 * (step % 3), 100 * (step % 3) + 100)

        def closure(rows=rows):
            optimizer.zero_grad()
            value = loss(model(X[rows]), y[rows])
            value.backward()
            return value

        if isinstance(optimizer, PESG) and step == 5:
            optimizer.update_regularizer(decay_factor=2.0)
        index = {"index": step % 3} if isinstance(optimizer, SAG) else {}
        values.append(optimizer.step(closure, **index).item())
    return values, torch.cat([w.detach().reshape(-1) for w in model.parameters()])


@for_every_optimizer
def test_groups_have_their_own_options_and_closures_are_called(kind, options):
    state = torch.get_rng_state()
    model, loss, optimizer = training(kind, options)
    assert torch.equal(torch.get_rng_state(), state)
    before = [w.detach().clone() for w in model.parameters()]
    expected = loss(model(X[:100]), y[:100]).item()
    assert trained(model, loss, optimizer, [0])[0] == [expected]
    moved = [not torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True)]
    assert moved == [False, False, True, True]
    if kind is PESG:
        optimizer.update_regularizer(decay_factor=2.0)
        assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.01, 0.01]


@for_every_optimizer
def test_a_training_resumes_exactly_from_a_saved_state(kind, options):
    things = training(kind, options)
    trained(*things, range(4))
    saved = io.BytesIO()
    torch.save([thing.state_dict() for thing in things], saved)
    expected_values, expected = trained(*things, range(4, 9))
    saved.seek(0)
    resumed = training(kind, options, lr=0.5)
    for thing, state in zip(resumed, torch.load(saved, weights_only=True), strict=True):
        thing.load_state_dict(state)
    values, parameters = trained(*resumed, range(4, 9))
    assert values == expected_values
    assert torch.equal(parameters, expected)


def sag(n_batches=2, **options):
    return SAG([torch.zeros(1, requires_grad=True)], n_batches, **options)


def pesg(loss=None, **options):
    return PESG([torch.zeros(1, requires_grad=True)], loss or AUCMLoss(), **options)


ZEROS = torch.zeros(3)
CALLS = [
    (lambda: sag(0), "n_batches must be a whole number of at least 1; got 0"),
    (lambda: sag(lr=-1), "lr must be at least 0; got -1"),
    (lambda: sag(weight_decay=-1), "weight_decay must be at least 0"),
    (lambda: sag().step(), "index must be .* from 0 to 1.* got None"),
    (lambda: sag().step(index=2), "index must be .* got 2"),
    (lambda: sag(3).load_state_dict(sag(4).state_dict()), "it has 4 batches, this optimiser 3"),
    (lambda: pesg(nn.MSELoss()), "must be an AUCMLoss; got MSELoss"),
    (lambda: pesg(lr=-1), "lr must be at least 0; got -1"),
    (lambda: pesg(momentum=2), "momentum must be between 0 and 1; got 2"),
    (lambda: pesg().update_regularizer(0), "decay_factor must be larger than 0"),
    (lambda: AUCMLoss(margin=-1), "margin must be"),
    (lambda: AUCMLoss(positive_share=1.0), "positive_share must be between 0 and 1; got 1.0"),
    (lambda: AUCMLoss()(torch.zeros(3, 2), torch.zeros(3, 2)), r"or .n, 1.; got .3, 2"),
    (lambda: AUCMLoss()(ZEROS, torch.zeros(4)), r"labels must have the shape .3,."),
    (lambda: AUCMLoss()(ZEROS, torch.tensor([0, 1, 2])), "got 2 .first at index 2"),
    (lambda: AUCMLoss()(ZEROS.int(), ZEROS), "scores must be floats"),
]


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_bad_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()
