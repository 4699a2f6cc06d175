"""AUCMLoss and PESG equal LibAUC, if it is installed, and the published formulas."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from everypair.torch.training.aucm import PESG, AUCMLoss

N_STEPS = 50
STAGES = (20, 35)  # steps before which the regulariser is updated


def network(seed=1):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())


def batches(n=N_STEPS):
    generator = torch.Generator().manual_seed(2)
    for _ in range(n):
        X = torch.randn(40, 6, generator=generator)
        yield X, (X[:, :1] + torch.randn(40, 1, generator=generator) > 1.0).float()


def train(model, loss, optimizer, data, stages=STAGES):
    """Yield the variables after every step, as one vector."""
    for step, (X, y) in enumerate(data):
        if step in stages:
            optimizer.update_regularizer(decay_factor=2.0)
        optimizer.zero_grad()
        loss(model(X), y).sum().backward()
        optimizer.step()
        variables = [*model.parameters(), loss.a, loss.b, loss.alpha]
        yield torch.cat([v.detach().reshape(-1) for v in variables])


@pytest.mark.skipif(find_spec("libauc") is None, reason="needs libauc")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lr": 0.5, "momentum": 0.3, "weight_decay": 1e-2, "epoch_decay": 0.05},
        {"momentum": 0.0, "clip_value": 0.01},
        {"lr": 0.02, "momentum": 1.0, "epoch_decay": 0.5},
    ],
    ids=str,
)
def test_equals_libauc_step_by_step(options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        libauc_losses = pytest.importorskip("libauc.losses", exc_type=ImportError)
        libauc_optimizers = pytest.importorskip("libauc.optimizers", exc_type=ImportError)
    theirs, ours = network(), network()
    their_loss, our_loss = libauc_losses.AUCMLoss(device="cpu"), AUCMLoss()
    with torch.random.fork_rng():
        torch.manual_seed(5)
        their_optimizer = libauc_optimizers.PESG(
            theirs.parameters(), loss_fn=their_loss, verbose=False, device="cpu", **options
        )
    our_optimizer = PESG(ours.parameters(), our_loss, seed=5, **options)
    expected = torch.stack(list(train(theirs, their_loss, their_optimizer, batches())))
    got = torch.stack(list(train(ours, our_loss, our_optimizer, batches())))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    assert got[-1, -1] > 0, "the dual variable was never at work"


def test_follows_the_published_formulas():
    model, loss = nn.Linear(6, 1, bias=False).double(), AUCMLoss(margin=0.7)
    options = {"lr": 0.3, "momentum": 0.8, "clip_value": 0.05, "weight_decay": 0.1}
    optimizer = PESG(model.parameters(), loss, epoch_decay=0.2, seed=9, **options)
    ref = torch.empty(1, 6).normal_(0, 0.01, generator=torch.Generator().manual_seed(9)).double()
    w = model.weight.detach().clone()
    u = None
    for X, y in batches(5):
        optimizer.zero_grad()
        loss(model(X.double()), y).backward()
        g = model.weight.grad.clamp(-0.05, 0.05) + 0.2 * (w - ref) + 0.1 * w
        u = g if u is None else 0.2 * u + 0.8 * g
        w = w - 0.3 * u
        alpha = loss.alpha.item()
        optimizer.step()
        torch.testing.assert_close(model.weight, w, rtol=1e-12, atol=1e-12)
        alpha = alpha + 0.3 * (2 * (0.7 + loss.b.item() - loss.a.item()) - 2 * alpha)
        assert loss.alpha.item() == pytest.approx(min(max(alpha, 0.0), 999.0), abs=1e-6)


def test_the_loss_equals_its_formula():
    generator = torch.Generator().manual_seed(0)
    h = torch.rand(50, generator=generator, dtype=torch.float64)
    y = torch.rand(50, generator=generator) > 0.7
    loss = AUCMLoss(margin=0.8)
    with torch.no_grad():
        loss.a.fill_(0.3)
        loss.b.fill_(0.2)
        loss.alpha.fill_(0.6)
    a, b, alpha = loss.a.item(), loss.b.item(), loss.alpha.item()
    for share in (None, 0.25):
        loss.positive_share = share
        p = y.double().mean().item() if share is None else share
        expected = 0.0
        for score, positive in zip(h.tolist(), y.tolist(), strict=True):
            expected += (1 - p) * (score - a) ** 2 if positive else p * (score - b) ** 2
            expected += 2 * alpha * (-(1 - p) * score if positive else p * score)
        expected = expected / 50 + 2 * alpha * p * (1 - p) * 0.8 - p * (1 - p) * alpha**2
        for labels in (y, y.float(), 2 * y.int() - 1):  # all codings
            assert loss(h, labels).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("label", [0.0, 1.0, -1.0])
@pytest.mark.parametrize("share", [None, 0.1])
def test_one_class_batches_stay_finite(label, share):
    model, loss = network(), AUCMLoss(positive_share=share)
    data = [(X, torch.full_like(y, label)) for X, y in batches(5)]
    for variables in train(model, loss, PESG(model.parameters(), loss), data):
        assert variables.isfinite().all()
    value = loss(model(data[0][0]), data[0][1])
    assert value.requires_grad
    if share is None:
        assert value.item() == 0.0


def test_the_reference_of_a_group_added_later_is_its_own_values():
    model, loss = network(), AUCMLoss()
    optimizer = PESG(model[0].parameters(), loss, weight_decay=0.0)
    optimizer.add_param_group({"params": model[2].parameters(), "clip_value": 0.0})
    optimizer.update_regularizer(decay_factor=1.0)  # a stage without steps changes nothing
    before = model[2].weight.detach().clone()
    variables = train(model, loss, optimizer, batches(3), stages=(0,))
    assert all(v.isfinite().all() for v in variables)
    assert torch.equal(model[2].weight, before)


def test_half_precision_scores_are_averaged_in_float32():
    scores = torch.full((4096,), 0.5, dtype=torch.bfloat16, requires_grad=True)
    value = AUCMLoss()(scores, torch.arange(4096) < 4)
    value.backward()
    assert (value.dtype, scores.grad.dtype) == (torch.float32, torch.bfloat16)


def test_shows_its_options_and_compiles_in_one_graph():
    loss = AUCMLoss(0.5)
    assert repr(loss) == "AUCMLoss(margin=0.5, positive_share=None)"
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    ((X, y),) = batches(1)
    assert torch.equal(compiled(X[:, 0], y[:, 0]), loss(X[:, 0], y[:, 0]))
