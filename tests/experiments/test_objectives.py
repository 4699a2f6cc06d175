"""The losses equal those of the library and of torch, on the scores of the protocol."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import everypair as ep
from everypair.experiments.errors import UserError
from everypair.experiments.plan import Settings, default_optimiser
from everypair.experiments.training.objectives import OBJECTIVES, ends_in_sigmoid
from everypair.experiments.training.optimisers import OPTIMISERS
from everypair.torch import AUCMLoss

PAIR_LOSSES = {  # the surrogate of each
    "squared_hinge": "squared_hinge",
    "square": "square",
    "linear_hinge": "linear_hinge",
    "pairwise_logistic": "logistic",
    "pairwise_sigmoid": "sigmoid",
}


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(40, generator=generator).requires_grad_()
    labels = (torch.rand(40, generator=generator) < 0.25).float()
    return scores, labels, torch.arange(40) % 4


def made(loss, labels, **settings):
    return OBJECTIVES.find(loss).make(Settings(**settings), labels)


@pytest.mark.parametrize("loss", PAIR_LOSSES)
@pytest.mark.parametrize("grouped", [False, True])
def test_pair_losses_equal_the_double_sum(loss, grouped, batch):
    scores, labels, groups = batch
    groups = groups if grouped else None
    value = made(loss, labels, margin=0.7)(scores, labels, groups)
    expected, grad = ep.naive.pair_loss_and_grad(
        scores.detach().double().numpy(),
        labels.numpy(),
        surrogate=PAIR_LOSSES[loss],
        margin=0.7,
        groups=None if groups is None else groups.numpy(),
    )
    value.backward()
    assert value.item() == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(scores.grad.double(), torch.from_numpy(grad), rtol=1e-5, atol=1e-7)


def test_the_logistic_loss_is_cross_entropy(batch):
    scores, labels, groups = batch
    expected = F.binary_cross_entropy(scores.sigmoid(), labels)
    torch.testing.assert_close(made("logistic", labels)(scores, labels, groups), expected)


def test_class_weights_give_both_classes_the_same_total(batch):
    scores, labels, _ = batch
    terms = F.binary_cross_entropy_with_logits(scores, labels, reduction="none")
    n_pos, n_neg = labels.sum(), (1 - labels).sum()
    expected = (terms[labels == 1].mean() + terms[labels == 0].mean()) * n_neg / (n_pos + n_neg)
    torch.testing.assert_close(made("weighted_logistic", labels)(scores, labels), expected)


@pytest.mark.parametrize(("protocol", "share"), [("corrected", 0.25), ("paper", None)])
def test_aucm_uses_the_share_of_positives_under_protocol_corrected(protocol, share, batch):
    scores, labels, _ = batch
    labels = (torch.arange(40) < 10).float()
    module = made("aucm", labels, protocol=protocol, margin=0.5)
    some = labels[5:15]
    expected = AUCMLoss(0.5, positive_share=share)(scores[5:15].sigmoid(), some)
    torch.testing.assert_close(module(scores[5:15].sigmoid(), some, None), expected)


@pytest.mark.parametrize("loss", OBJECTIVES)
def test_every_loss_is_a_number_with_a_gradient(loss, batch):
    scores, labels, groups = batch
    value = made(loss, labels)(scores.sigmoid(), labels, groups)
    assert value.shape == ()
    value.backward()
    assert scores.grad.abs().sum() > 0


@pytest.mark.parametrize("loss", PAIR_LOSSES)
def test_scores_that_are_not_finite_give_a_loss_that_is_not(loss, batch):
    scores, labels, _ = batch
    with torch.no_grad():
        scores[3] = torch.nan
    assert not made(loss, labels)(scores, labels).isfinite()


@pytest.mark.parametrize("loss", OBJECTIVES)
def test_optimisers_of_a_loss_exist_and_the_default_is_first(loss):
    able = OBJECTIVES[loss].optimisers
    assert set(able) <= set(OPTIMISERS)
    assert able[0] == default_optimiser(loss)


@pytest.mark.parametrize(
    ("loss", "scores", "protocol", "expected"),
    [
        ("squared_hinge", "raw", "corrected", False),
        ("squared_hinge", "sigmoid", "corrected", True),
        ("logistic", "sigmoid", "corrected", False),
        ("weighted_logistic", "sigmoid", "corrected", False),
        ("pairwise_logistic", "sigmoid", "corrected", False),
        ("pairwise_sigmoid", "sigmoid", "corrected", False),
        ("aucm", "raw", "corrected", True),
        ("logistic", "sigmoid", "paper", True),
        ("squared_hinge", "raw", "paper", True),
    ],
)
def test_which_models_end_in_a_sigmoid(loss, scores, protocol, expected):
    assert ends_in_sigmoid(loss, Settings(scores=scores, protocol=protocol)) is expected


def test_an_unknown_loss_is_refused():
    with pytest.raises(UserError, match=r"loss must be one of .* Did you mean squared_hinge\?"):
        ends_in_sigmoid("squared-hinge", Settings())
