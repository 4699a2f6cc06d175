"""Narrow and wide types, autocast, and scores as large as their type allows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from everypair import naive
from everypair.torch import PairLoss, pair_derivatives, pair_loss

from ..tolerances import assert_close

NARROW = (torch.float16, torch.bfloat16)
FLOATS = (*NARROW, torch.float32, torch.float64)


def sample(dtype, n=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, generator=generator).to(dtype).requires_grad_()
    return scores, torch.rand(n, generator=generator) < 0.3


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_each_type_of_scores_has_a_wide_loss_and_derivatives_of_its_own(
    torch_backend, dtype, reduction
):
    scores, labels = sample(dtype)
    options = {"surrogate": "huber_hinge", "reduction": reduction}
    loss = pair_loss(scores, labels, **options)
    loss.backward()
    found = pair_derivatives(scores, labels, **options)
    assert loss.dtype is found.value.dtype is torch.promote_types(dtype, torch.float32)
    assert scores.grad.dtype is found.hess.dtype is dtype
    assert not any(tensor.requires_grad for tensor in found)
    torch.testing.assert_close(found.grad, scores.grad)
    value, *wanted = naive.pair_derivatives(
        scores.detach().double().numpy(), labels.numpy(), **options
    )
    assert_close(loss.item(), value, np.float64 if dtype is torch.float64 else np.float32)
    for got, exact in zip(found[1:], wanted, strict=True):
        error = np.abs(got.double().numpy() - exact).max()
        assert error <= max(1e-12, torch.finfo(dtype).eps) * np.abs(exact).max()


def test_a_hessian_is_clamped_to_the_range_of_its_type(torch_backend):
    scores, weights = torch.zeros(2, dtype=torch.float16), torch.tensor([1e3, 1e3])
    options = {"weights": weights, "reduction": "sum", "margin": 0.5}
    found = pair_derivatives(scores, torch.tensor([1, 0]), **options)
    assert found.hess.tolist() == [torch.finfo(torch.float16).max] * 2


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
        torch.uint32, torch.uint64, *FLOATS,
    ],
    ids=str,
)  # fmt: skip
def test_all_label_types(dtype):
    scores, labels = sample(torch.float32)
    want = pair_loss(scores, labels)
    assert pair_loss(scores, labels.to(dtype)) == want
    if dtype.is_signed:
        assert pair_loss(scores, torch.where(labels, 1, -1).to(dtype)) == want


def test_all_types_of_weights_and_groups(torch_backend):
    scores, labels = sample(torch.float32)
    weights, groups = torch.arange(200) % 3, torch.arange(200) % 2
    want = pair_loss(scores, labels, weights=weights.double())
    for dtype in (torch.int64, *FLOATS):
        assert pair_loss(scores, labels, weights=weights.to(dtype)) == want
    want = pair_loss(scores, labels, groups=groups + 3)
    for dtype in (torch.bool, torch.uint8, torch.int32, torch.int64):
        torch.testing.assert_close(pair_loss(scores, labels, groups=groups.to(dtype)), want)


@pytest.mark.parametrize("n", [2, 6000])
@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_largest_scores_have_a_finite_gradient(torch_backend, dtype, n, reduction):
    most = torch.finfo(dtype).max
    scores = torch.tensor([-most, most], dtype=dtype).repeat(n // 2).requires_grad_()
    loss = pair_loss(scores, torch.tensor([1, 0]).repeat(n // 2), reduction=reduction)
    assert not loss.isnan()
    loss.backward()
    assert scores.grad.isfinite().all()
    assert (scores.grad[::2] < 0).all()
    assert (scores.grad[1::2] > 0).all()


def test_a_loss_too_large_for_its_type_is_infinite(torch_backend):
    scores = torch.tensor([-1e30, 1e30], requires_grad=True)
    loss = pair_loss(scores, torch.tensor([1, 0]))
    loss.backward()
    assert loss.isinf()
    torch.testing.assert_close(scores.grad, torch.tensor([-4e30, 4e30]))


def test_a_loss_beyond_float64_raises_on_the_cpu_and_is_infinite_elsewhere(torch_backend):
    scores = torch.tensor([-1e200, 0.0, 1e200], dtype=torch.float64, requires_grad=True)
    for surrogate in ("squared_hinge", "exponential"):
        for labels, pairs in (
            ([1, 1, 0], "binary"),
            ([3, 2, 1], "ordered"),
            ([1, 2, 3], "survival"),
        ):
            arguments = scores, torch.tensor(labels)
            options = {"surrogate": surrogate, "pairs": pairs}
            if torch_backend == "cpu":
                with pytest.raises(OverflowError, match="range of float64"):
                    pair_loss(*arguments, **options)
            else:
                loss = pair_loss(*arguments, **options)
                assert loss.isinf()
                assert torch.autograd.grad(loss, scores)[0].isfinite().all()


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_autocast(dtype):
    model = torch.nn.Linear(5, 1)
    inputs, (_, labels) = torch.randn(200, 5), sample(torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        scores = model(inputs)
        assert scores.dtype is dtype
        loss = PairLoss()(scores, labels)
    assert loss.dtype is torch.float32
    loss.backward()
    assert model.weight.grad.dtype is torch.float32
    want = pair_loss(scores.detach().float(), labels)
    torch.testing.assert_close(loss.detach(), want)


def test_loss_scaling_is_applied_before_the_gradient_is_rounded(torch_backend):
    # Gradients below the smallest normal float16 lose digits; loss scaling prevents that.
    n = 4000
    scores = torch.zeros(n, dtype=torch.float16, requires_grad=True)
    labels = torch.arange(n) % 2
    (pair_loss(scores, labels, margin=1e-4) * 65536.0).backward()
    want = 65536.0 * 2e-4 / (n / 2)
    assert want / 65536.0 < torch.finfo(torch.float16).smallest_normal
    torch.testing.assert_close(scores.grad[0].item(), want, rtol=1e-3, atol=0.0)


def test_parameters_and_tensor_subclasses_may_be_scores():
    class Tagged(torch.Tensor):
        pass

    scores, labels = sample(torch.float32)
    want = pair_loss(scores, labels)
    want.backward()
    for kind in (torch.nn.Parameter, lambda t: t.as_subclass(Tagged).requires_grad_()):
        leaf = kind(scores.detach().clone())
        loss = pair_loss(leaf, labels)
        loss.backward()
        assert loss.item() == want.item()
        assert leaf.grad.as_subclass(torch.Tensor).allclose(scores.grad)
