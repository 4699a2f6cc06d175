"""The CPU kernel reads common tensors itself: it equals the general path, which takes the rest."""

from __future__ import annotations

import pytest
import torch

from everypair import surrogates
from everypair.kernel import choose, native
from everypair.torch import PairLoss, _dispatch
from everypair.torch._dispatch import direct_loss_and_grad
from everypair.torch._options import LossOptions

pytestmark = pytest.mark.skipif(not choose.uses_native(), reason="needs the compiled kernel")

TERMS = surrogates.SQUARED_HINGE.at_margin(1.0)
OPTIONS = LossOptions(TERMS)
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


def assert_as_in_general(monkeypatch, scores, labels, **options):
    """Assert that the kernel reads a batch, and that the general path has the same results."""
    read = _dispatch._read(scores, labels, None, OPTIONS)
    assert read is not None
    direct = loss_and_grad(scores, labels, **options)
    with monkeypatch.context() as patch:
        patch.setattr(_dispatch, "_read", lambda *_: None)
        general = loss_and_grad(scores, labels, **options)
    assert direct[0] == general[0]
    assert direct[0].dtype is general[0].dtype
    assert direct[1].shape == scores.shape
    assert torch.equal(direct[1], general[1])
    assert direct[2] == general[2] == int(not labels.any())


@pytest.mark.parametrize("surrogate", ["squared_hinge", "logistic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("label_type", LABEL_TYPES, ids=str)
def test_it_equals_the_general_path(monkeypatch, label_type, dtype, surrogate):
    scores, labels = sample(dtype=dtype)
    for reduction in ("mean", "sum"):
        assert_as_in_general(
            monkeypatch, scores, labels.to(label_type), reduction=reduction, surrogate=surrogate
        )
    assert_as_in_general(monkeypatch, scores, torch.zeros_like(labels))
    for column in (labels, labels[:, None]):
        assert_as_in_general(monkeypatch, sample((60, 1), dtype)[0], column)
    assert_as_in_general(monkeypatch, scores, labels[:, None])


def test_the_gradient_is_returned_without_a_copy(monkeypatch):
    results, read = [], _dispatch._read
    monkeypatch.setattr(
        _dispatch, "_read", lambda *batch: results.append(read(*batch)) or results[0]
    )
    scores, labels = sample()
    loss = PairLoss()(scores, labels)
    address = results.pop()[2].data_ptr()
    loss.backward()
    assert scores.grad.data_ptr() == address


@pytest.mark.parametrize(
    "change",
    [
        lambda s, y: (s.half(), y),
        lambda s, y: (s, y.short()),
        lambda s, y: (s.repeat_interleave(2)[::2], y),
        lambda s, y: (s, y.repeat_interleave(2)[::2]),
        lambda s, y: (torch._neg_view(-s), y),
        lambda s, y: (s, torch._neg_view(-y)),
        lambda s, y: (s.reshape(30, 2), y.reshape(30, 2)),
        lambda s, y: (s, y.as_subclass(type("Labels", (torch.Tensor,), {}))),
    ],
)
def test_other_tensors_take_the_general_path(change):
    scores, labels = change(*sample())
    assert direct_loss_and_grad(scores, labels, None, None, OPTIONS) is None
    expected = PairLoss()(scores.clone().contiguous(), labels.clone().contiguous().float())
    assert PairLoss()(scores, labels).item() == pytest.approx(expected.item(), rel=1e-6)


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
    others = None, (TERMS, None, None), True, 1
    evaluate = native.kernel.evaluate_tensors
    assert evaluate(scores, labels, *others) is not None
    assert evaluate(change(scores), labels, *others) is None
    if change(scores) is not None and change(scores).dtype is not torch.int32:
        assert evaluate(scores, change(labels), *others) is None


def test_the_kernel_declines_all_tensors_of_an_older_torch(monkeypatch):
    scores, labels = sample()
    expected = PairLoss()(scores, labels).item()
    assert direct_loss_and_grad(scores, labels, torch.rand(60), None, OPTIONS) is not None
    monkeypatch.setattr(native.kernel, "evaluate_tensors", lambda *_: None)
    assert direct_loss_and_grad(scores, labels, None, None, OPTIONS) is None
    assert PairLoss()(scores, labels).item() == expected
