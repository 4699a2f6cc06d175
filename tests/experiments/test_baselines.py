"""The baselines equal their published formulas, and SOLAM has the optimum of the square loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import everypair as ep
from everypair.experiments.data.splits import Part
from everypair.experiments.errors import UserError
from everypair.experiments.plan import Settings
from everypair.experiments.training import optimisers, resampling
from everypair.experiments.training.objectives import OBJECTIVES
from everypair.experiments.training.optimisers import OPTIMISERS, TrainingTask
from everypair.experiments.training.side_by_side import can_share_a_graph
from everypair.experiments.training.trial import train
from tests.experiments.parts import cloud, clouds, images, trial

N_POS, N_NEG = 10, 70


@pytest.fixture
def rows():
    labels = torch.tensor([1.0] * N_POS + [0.0] * N_NEG)
    scores = torch.randn(80, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return scores, labels


def made(loss, labels, **settings):
    return OBJECTIVES[loss].make(Settings(**settings), labels)


def effective_weights():
    """Return (1 - beta) / (1 - beta^n) of both classes, scaled to the mean 1 over the rows."""
    weights = [(1 - 0.9999) / (1 - 0.9999**n) for n in (N_NEG, N_POS)]
    mean = (N_NEG * weights[0] + N_POS * weights[1]) / (N_NEG + N_POS)
    return [weight / mean for weight in weights]


def test_class_weights_are_those_of_the_effective_number_of_samples(rows):
    """Cui et al. (2019), equation 8, with the sigmoid cross-entropy."""
    scores, labels = rows
    expected = [
        effective_weights()[int(y)] * -math.log(1 / (1 + math.exp(-s if y else s)))
        for s, y in zip(scores.tolist(), labels.tolist(), strict=True)
    ]
    value = made("effective_number", labels)(scores, labels)
    assert value.item() == pytest.approx(sum(expected) / 80, rel=1e-6)


@pytest.mark.parametrize(("epoch", "weights"), [(8, [1.0, 1.0]), (9, effective_weights())])
def test_ldam_has_the_published_margins_and_defers_its_weights(rows, epoch, weights):
    """Cao et al. (2019), equations 12 and 13 for two classes, and algorithm 1."""
    scores, labels = rows
    settings = Settings(epochs=10)
    module = made("ldam", labels)
    OBJECTIVES["ldam"].begin_epoch(module, epoch, settings)
    margins = [0.5 * (N_POS / n) ** 0.25 for n in (N_NEG, N_POS)]
    expected = 0.0
    for s, y in zip(scores.tolist(), map(int, labels.tolist()), strict=True):
        logits = [0.0, s]  # the score is the lead of the positive class
        lead = math.exp(logits[y] - margins[y])
        expected -= weights[y] * math.log(lead / (lead + math.exp(logits[1 - y])))
    assert module(scores, labels).item() == pytest.approx(expected / 80, rel=1e-6)


def test_solam_is_the_published_saddle_function(rows):
    """Ying et al. (2016), equation 3, for any margin; a constant is not subtracted."""
    scores, labels = rows
    module, p, margin = made("solam", labels, margin=0.7), 0.125, 0.7
    assert module.loss.alpha.item() == pytest.approx(margin)  # their alpha starts at 0
    with torch.no_grad():
        for variable, value in zip(("a", "b", "alpha"), (0.3, -0.2, -0.4), strict=True):
            getattr(module.loss, variable).fill_(value)
    a, b, alpha = 0.3, -0.2, -0.4 - margin
    total = 0.0
    for s, y in zip(scores.tolist(), labels.tolist(), strict=True):
        total += (1 - p) * (s - a) ** 2 * y + p * (s - b) ** 2 * (1 - y)
        total += 2 * (margin + alpha) * (p * s * (1 - y) - (1 - p) * s * y)
        total -= p * (1 - p) * alpha**2
    value = module(scores, labels).item() - p * (1 - p) * margin**2
    assert value == pytest.approx(total / 80, rel=1e-5)


@pytest.mark.parametrize(("batch", "epochs", "tolerance"), [(0, 3000, 1e-4), (1, 60, 0.05)])
def test_solam_reaches_the_optimum_of_the_square_loss(batch, epochs, tolerance):
    """Of a linear model: descent and ascent with all rows at once, and with one row at a time."""
    part = cloud(60, 0.3, 3, 0, 1.0, 0)
    X, y = part.inputs, part.labels
    X_pos, X_neg = X[y > 0].double(), X[y == 0].double()
    pairs = (X_pos[:, None] - X_neg).flatten(0, 1)
    expected = torch.linalg.lstsq(pairs, torch.ones(len(pairs), 1, dtype=torch.float64)).solution
    w = torch.zeros(3, requires_grad=True)
    module = made("solam", y)
    task = TrainingTask(0.3 if batch == 0 else 0.1, 1, 0, Settings())
    descent = OPTIMISERS["solam"].make([w], module, task)
    rng = np.random.default_rng(0)
    for epoch in range(epochs):
        order = torch.from_numpy(rng.permutation(60))
        optimisers.set_rate(descent, task.rate / (1 if batch == 0 else math.sqrt(1 + epoch)))
        for rows in [order] if batch == 0 else order.split(batch):
            descent.zero_grad()
            module(X[rows] @ w, y[rows]).backward()
            descent.step()
    torch.testing.assert_close(w.detach().double(), expected[:, 0], atol=tolerance, rtol=0)
    if batch == 0:
        square = ep.pair_loss((X @ w.detach()).numpy(), y.numpy(), surrogate="square")
        assert module(X @ w.detach(), y).item() == pytest.approx(0.3 * 0.7 * square, rel=1e-4)


def test_random_sampling_makes_both_classes_equally_many():
    part = clouds(100, share=0.1).subtrain
    counts = {}
    for name in ("oversampling", "undersampling"):
        found = OBJECTIVES[name].resample(part, 0)
        kept = {tuple(row) for row in found.inputs.tolist()}
        given = {tuple(row) for row, y in zip(part.inputs.tolist(), part.labels, strict=True)}
        assert kept <= given
        assert found.labels.mean() == 0.5
        again, other = (OBJECTIVES[name].resample(part, seed) for seed in (0, 1))
        assert torch.equal(found.inputs, again.inputs)
        assert not torch.equal(found.inputs, other.inputs)
        counts[name] = len(found), len(kept)
    assert counts == {"oversampling": (180, 100), "undersampling": (20, 20)}


def test_resampled_losses_train_on_images_alone_and_are_measured_on_all_rows():
    record, _ = train(trial("oversampling"), Settings(model="linear", epochs=1), images())
    assert record.state == "finished"
    assert not can_share_a_graph(trial("oversampling"))


@pytest.mark.parametrize("name", ["smote", "adasyn"])
def test_synthetic_rows_lie_between_neighbouring_positives(name):
    """SMOTE: x + u (neighbour - x), u in [0, 1]. ADASYN: more of them beside negatives."""
    pytest.importorskip("imblearn")
    part = clouds(200, share=0.1).subtrain
    n, positives = len(part), part.inputs[part.labels > 0].double()
    found = OBJECTIVES[name].resample(part, 0)
    assert torch.equal(found.inputs[:n], part.inputs)
    new = found.inputs[n:].double()
    assert (found.labels[n:] == 1).all()
    near = torch.cdist(positives, positives).topk(6, largest=False).indices[:, 1:]
    begin = positives[:, None].expand(-1, 5, -1).reshape(-1, 5)
    along = positives[near].reshape(-1, 5) - begin
    u = ((new[:, None] - begin) * along).sum(-1) / along.square().sum(-1)
    gap = (begin + u.clamp(0, 1)[..., None] * along - new[:, None]).norm(dim=-1)
    assert gap.min(dim=1).values.max() < 1e-5
    if name == "smote":
        assert found.labels.mean() == 0.5
        return
    # He et al. (2008), equations 3 to 5: g_i of a positive follows from its share of negatives.
    distance = torch.cdist(positives, part.inputs.double())
    share = 1 - part.labels[distance.topk(6, largest=False).indices[:, 1:]].double().mean(1)
    expected = np.rint((share / share.sum() * (n - 2 * len(positives))).numpy())
    began = gap.argmin(dim=1) // 5  # a row on a segment that two positives share counts for either
    assert len(new) == expected.sum()
    assert expected[np.unique(began)].min() > 0


def test_synthetic_rows_have_the_shape_of_the_others_and_need_two_positives():
    pytest.importorskip("imblearn")
    part = images().subtrain
    few = Part(part.inputs[part.labels.cumsum(0) < 10], part.labels[part.labels.cumsum(0) < 10])
    found = resampling.smote(few, 0)
    assert (found.inputs.shape[1:], found.inputs.dtype) == (part.inputs.shape[1:], torch.uint8)
    one = Part(torch.randn(9, 2), torch.tensor([1.0] + [0.0] * 8))
    with pytest.raises(UserError, match=r"SMOTE cannot add rows here: .* Take oversampling"):
        resampling.smote(one, 0)


def test_a_package_that_is_missing_is_named_before_the_training(monkeypatch):
    monkeypatch.setattr(optimisers, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="loss adasyn needs the package imbalanced-learn; install"):
        optimisers.check("adasyn", "sgd", batch=50)
