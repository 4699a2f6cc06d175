"""The short path of PairLoss on the CPU: it equals the general path, and leaves the rest to it."""

from __future__ import annotations

import pytest
import torch

from everypair import surrogates
from everypair.kernel import choose
from everypair.torch import PairLoss, _cpu, _functional
from everypair.torch._autograd import direct_loss

pytestmark = pytest.mark.skipif(choose.native.kernel is None, reason="needs the compiled kernel")

TERMS = surrogates.SQUARED_HINGE.at_margin(1.0)
# Types of labels that the kernel reads without a copy.
LABEL_TYPES = (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32)


def sample(shape=(60,), dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()
    return scores, (torch.rand(shape, generator=generator) < 0.3).float()


def loss_and_grad(scores, labels, **options):
    scores.grad = None
    criterion = PairLoss(**options)
    loss = criterion(scores, labels)
    loss.backward()
    return loss.detach(), scores.grad, int(criterion.n_one_class)


def both_paths(monkeypatch, *batch, **options):
    """Return loss, gradient and count by the short path, and then by the general one."""
    short = loss_and_grad(*batch, **options)
    with monkeypatch.context() as patch:
        patch.setattr(_functional, "direct_loss", lambda *_: None)
        return short, loss_and_grad(*batch, **options)


@pytest.mark.parametrize("surrogate", ["squared_hinge", "logistic"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("label_type", LABEL_TYPES, ids=str)
def test_it_equals_the_general_path(monkeypatch, label_type, dtype, reduction, surrogate):
    scores, labels = sample(dtype=dtype)
    assert direct_loss(scores, labels.to(label_type), None, TERMS, True, None) is not None
    short, general = both_paths(
        monkeypatch, scores, labels.to(label_type), reduction=reduction, surrogate=surrogate
    )
    assert short[0] == general[0]
    assert short[0].dtype is general[0].dtype
    assert torch.equal(short[1], general[1])


@pytest.mark.parametrize("label_shape", [(60,), (60, 1)], ids=str)
@pytest.mark.parametrize("shape", [(60,), (60, 1)], ids=str)
def test_it_takes_rows_and_columns(monkeypatch, shape, label_shape):
    scores, labels = sample(shape)
    labels = labels.reshape(label_shape)
    assert direct_loss(scores, labels, None, TERMS, True, None) is not None
    short, general = both_paths(monkeypatch, scores, labels)
    assert short[0] == general[0]
    assert short[1].shape == shape
    assert torch.equal(short[1], general[1])


def test_it_counts_batches_without_a_pair(monkeypatch):
    scores, labels = sample()
    short, general = both_paths(monkeypatch, scores, torch.zeros_like(labels))
    assert short[2] == general[2] == 1


def test_it_takes_weights_and_checks_them():
    scores, labels = sample()
    weights = torch.rand(60)
    assert direct_loss(scores, labels, weights, TERMS, True, None) is not None
    with pytest.raises(ValueError, match=r"weights must have the shape \(60,\)"):
        direct_loss(scores, labels, weights[1:], TERMS, True, None)


def test_the_gradient_is_returned_without_a_copy(monkeypatch):
    found = []

    def spy(*arguments):
        found.append(loss_and_grad_of_kernel(*arguments))
        return found[-1]

    loss_and_grad_of_kernel = _cpu.loss_and_grad
    monkeypatch.setattr(_cpu, "loss_and_grad", spy)
    scores, labels = sample()
    loss = PairLoss()(scores, labels)
    address = found.pop()[2].data_ptr()
    loss.backward()
    assert scores.grad.data_ptr() == address


def negated(tensor):
    """Return the same values as a tensor whose memory holds them with the other sign."""
    return torch._neg_view(-tensor)


@pytest.mark.parametrize(
    "change",
    [
        lambda s, y: (s.detach(), y),  # no gradient is needed
        lambda s, y: (s.half(), y),
        lambda s, y: (s, y.short()),
        lambda s, y: (s.repeat_interleave(2)[::2], y),
        lambda s, y: (s, y.repeat_interleave(2)[::2]),
        lambda s, y: (negated(s), y),
        lambda s, y: (s, negated(y)),
        lambda s, y: (s.reshape(30, 2), y.reshape(30, 2)),
        lambda s, y: (s, y.as_subclass(type("Labels", (torch.Tensor,), {}))),
    ],
)
def test_other_tensors_take_the_general_path(change):
    scores, labels = change(*sample())
    assert direct_loss(scores, labels, None, TERMS, True, None) is None
    expected = PairLoss()(scores.clone().contiguous(), labels.clone().contiguous().float())
    assert PairLoss()(scores, labels).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        (torch.tensor([0.0, torch.nan]), torch.tensor([1, 0])),
        (torch.tensor([0.0, 1.0]), torch.tensor([2, 0])),
        (torch.tensor([0.0, 1.0]), torch.tensor([1, 0, 0])),
        (torch.tensor([0.0, 1.0]), torch.tensor([[[1]], [[0]]])),
        (torch.empty(0), torch.empty(0)),
        (torch.tensor(1.0), torch.tensor(1.0)),
        (torch.tensor([0.0, 1.0]), [1, 0]),
        ([0.0, 1.0], torch.tensor([1, 0])),
    ],
    ids=str,
)
def test_bad_input_is_left_to_the_general_path(scores, labels):
    scores = scores.requires_grad_() if isinstance(scores, torch.Tensor) else scores
    assert direct_loss(scores, labels, None, TERMS, True, None) is None
    with pytest.raises(ValueError, match=r"scores must|labels must"):
        PairLoss()(scores, labels)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.bfloat16(),
        lambda s: s.int(),
        lambda s: s[:1],
        lambda s: s[:0],
        lambda s: s[0],
        lambda s: s[:1].expand(2),
        lambda s: s.to_sparse(),
        lambda s: s.to("meta"),
        lambda s: torch._efficientzerotensor(2),
        lambda s: s.numpy(),
        lambda s: None,
    ],
)
def test_the_kernel_declines_what_it_cannot_read(change):
    scores, labels = torch.tensor([0.5, 2.0]), torch.tensor([0.0, 1.0])
    options = None, (TERMS, None, None), True, 1
    evaluate = choose.native.kernel.evaluate_tensors
    assert evaluate(scores, labels, *options) is not None
    assert evaluate(change(scores), labels, *options) is None
    if change(scores) is not None and change(scores).dtype is not torch.int32:
        assert evaluate(scores, change(labels), *options) is None


def test_the_kernel_declines_all_tensors_of_an_older_torch(monkeypatch):
    scores, labels = sample()
    with monkeypatch.context() as patch:
        patch.setattr(choose.native.kernel, "evaluate_tensors", lambda *_: None)
        assert direct_loss(scores, labels, None, TERMS, True, None) is None
        assert PairLoss()(scores, labels).item() == PairLoss()(scores, labels).item()
