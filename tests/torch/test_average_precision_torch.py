"""The smooth average precision loss, against the matrix of all pairs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import everypair as ep
from everypair.kernel import choose
from everypair.torch import AveragePrecisionLoss


def matrix_loss(scores, labels, temperature, weights=None):
    """Return one minus Smooth-AP by the textbook formula (Brown et al. 2020), in float64."""
    scores, positive = scores.double(), labels > 0
    w = torch.ones_like(scores) if weights is None else weights.double()
    rows = positive.nonzero().squeeze(1)
    above = w * torch.sigmoid((scores - scores[rows, None]) / temperature)
    above = above * (torch.arange(len(scores)) != rows[:, None])
    rank = w[rows] + (above * positive).sum(1)
    return 1.0 - (w[rows] * rank / (w[rows] + above.sum(1))).sum() / w[rows].sum()


def batch(n=400, seed=0, dtype=torch.float64, share=0.1):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.rand(n, generator=generator) < share
    labels[0] = True
    scores = torch.randn(n, generator=generator, dtype=dtype) + labels
    scores[::4] = scores[::4].round()  # ties, also between the classes
    weights = torch.rand(n, generator=generator, dtype=dtype)
    return scores.requires_grad_(), labels, weights


def assert_equals_the_matrix(scores, labels, weights, temperature=0.1):
    dtype = scores.dtype
    loss = AveragePrecisionLoss(temperature=temperature)(scores, labels, weights)
    expected = matrix_loss(scores, labels, temperature, weights)
    tolerance = 1e-12 if dtype is torch.float64 else 1e-6
    assert loss.dtype is dtype
    assert loss.item() == pytest.approx(expected.item(), rel=tolerance)
    (got,) = torch.autograd.grad(loss, scores)
    (want,) = torch.autograd.grad(expected, scores)
    assert (got - want).abs().max() <= tolerance * want.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0.001, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("share", [0.05, 0.9])
def test_value_and_gradient_are_those_of_the_matrix(
    dtype, temperature, weighted, share, torch_backend
):
    scores, labels, weights = batch(dtype=dtype, share=share)
    assert_equals_the_matrix(scores, labels, weights if weighted else None, temperature)


@pytest.mark.parametrize("kernel", ["numpy", "native"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_kernels_equal_the_matrix_for_thousands_of_rows(kernel, dtype):
    if kernel == "native" and choose.native.kernel is None:
        pytest.skip("the compiled kernel is not built here")
    with choose.backend(kernel):
        assert_equals_the_matrix(*batch(10_000, dtype=dtype, share=0.01))


@pytest.mark.parametrize("grouped", [False, True])
def test_derivatives_are_those_of_finite_differences(grouped, torch_backend):
    scores, labels, weights = batch(14, share=0.4)
    groups = torch.arange(14) % 3 if grouped else None

    def loss(scores):
        return AveragePrecisionLoss(temperature=0.5)(scores, labels, weights, groups)

    assert gradcheck(loss, scores)
    assert gradgradcheck(loss, scores)


def test_groups_are_averaged_and_rows_of_weight_0_take_no_part():
    scores, labels, weights = batch(60, share=0.3)
    groups = torch.arange(60) % 4
    labels[groups == 3] = False  # a group without a positive does not count
    weights[::5] = 0.0
    criterion = AveragePrecisionLoss()
    got = criterion(scores, labels, weights, groups)
    of_groups = [
        criterion(*(t[(groups == g) & (weights > 0)] for t in (scores, labels, weights)))
        for g in range(3)
    ]
    torch.testing.assert_close(got, sum(of_groups) / 3)


def test_a_bank_ranks_past_rows_together_with_the_batch():
    criterion = AveragePrecisionLoss(temperature=0.3, bank=25)
    batches = [batch(20, seed) for seed in range(3)]
    for scores, labels, weights in batches:
        loss = criterion(scores, labels, weights)
    past = [torch.cat([b[k].detach() for b in batches[:2]])[-25:] for k in range(3)]
    scores, labels, weights = (torch.cat(parts) for parts in zip(batches[2], past, strict=True))
    expected = matrix_loss(scores, labels, 0.3, weights)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    got, want = (torch.autograd.grad(value, batches[2][0])[0] for value in (loss, expected))
    torch.testing.assert_close(got, want)
    newest = torch.cat([batches[1][0][-5:], batches[2][0]]).detach()
    assert torch.equal(criterion.bank_scores, newest)


def test_a_bank_is_for_training_only_and_not_in_checkpoints():
    scores, labels, _ = batch(20)
    criterion = AveragePrecisionLoss(bank=10)
    alone = AveragePrecisionLoss()(scores, labels)
    torch.testing.assert_close(criterion(scores, labels), alone)  # the bank is empty
    assert not criterion.state_dict()
    assert len(criterion.bank_scores) == 10
    assert not criterion.bank_scores.requires_grad
    assert criterion(scores, labels).item() != alone.item()
    criterion.eval()
    torch.testing.assert_close(criterion(scores, labels), alone)
    twin = copy.deepcopy(criterion).train()
    twin.reset_bank()
    torch.testing.assert_close(twin(scores, labels), alone)


def test_a_cold_loss_of_many_rows_is_one_minus_average_precision():
    """The matrix of positives and rows would have 2e9 entries."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200_000) < 10_000
    scores = torch.randn(200_000, generator=generator).double() + labels
    groups = torch.randint(0, 8, (200_000,), generator=generator)
    criterion = AveragePrecisionLoss(temperature=1e-6)
    for options in ({}, {"groups": groups}):
        exact = ep.average_precision(scores, labels, **options)
        assert criterion(scores, labels, **options).item() == pytest.approx(1.0 - exact, rel=1e-5)


@pytest.mark.parametrize("labels", [torch.zeros(4), torch.ones(4)])
@pytest.mark.parametrize("groups", [None, torch.tensor([0, 0, 1, 1])])
def test_one_class_has_no_loss_and_stays_in_the_graph(labels, groups):
    scores = torch.randn(4, requires_grad=True)
    loss = AveragePrecisionLoss()(scores, labels, groups=groups)
    for _ in range(2):  # the graph can be used again
        loss.backward(retain_graph=True)
        assert (loss.item(), scores.grad.tolist()) == (0.0, [0.0] * 4)


def test_label_codings_and_shapes():
    scores, labels, _ = batch(40, dtype=torch.float32)
    criterion = AveragePrecisionLoss(bank=5).eval()
    assert repr(criterion) == "AveragePrecisionLoss(temperature=0.1, bank=5)"
    expected = criterion(scores, labels).item()
    for coded in (labels.float(), labels.long(), labels.int() * 2 - 1, labels[:, None]):
        column = scores[:, None] if coded.dim() == 2 else scores
        assert criterion(column, coded).item() == expected


ROWS = torch.zeros(4)


@pytest.mark.parametrize(
    ("options", "data", "message"),
    [
        ({"temperature": 0.0}, {}, "temperature must be above 0"),
        ({"bank": -1}, {}, "bank must be a whole number of at least 0"),
        ({"bank": 1}, {"groups": ROWS.long()}, "groups must not be given together with a bank"),
        ({}, {"labels": ROWS + 2}, "two classes coded"),
        ({}, {"scores": ROWS / 0.0}, "scores must be finite"),
    ],
)
def test_bad_arguments_raise(options, data, message):
    with pytest.raises(ValueError, match=message):
        AveragePrecisionLoss(**options)(**{"scores": ROWS, "labels": ROWS, **data})
