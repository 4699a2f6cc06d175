"""Value, gradient and diagonal Hessian without a graph: shapes, types, tasks and bad values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from everypair import naive
from everypair.torch import PairDerivatives, pair_derivatives, pair_loss
from everypair.torch._dispatch import evaluate
from everypair.torch._options import LossOptions

pytestmark = pytest.mark.usefixtures("torch_backend")


def sample(shape=(40,), dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(shape, generator=generator).to(dtype)
    labels = torch.rand(shape, generator=generator) < 0.4
    labels[:2] = torch.tensor([True, False]).reshape(2, *[1] * (len(shape) - 1))
    return scores, labels


def assert_equal(found, wanted, rtol):
    for got, array in zip(found, wanted, strict=True):
        got = got.double().numpy()
        np.testing.assert_allclose(got, array, rtol=0, atol=rtol * np.abs(array).max(initial=0))


def test_the_result_is_not_part_of_a_graph():
    scores, labels = sample()
    found = pair_derivatives(scores.requires_grad_(), labels)
    assert isinstance(found, PairDerivatives)
    assert not any(tensor.requires_grad for tensor in found)
    pair_loss(scores, labels).backward()
    torch.testing.assert_close(found.grad, scores.grad)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_all_score_types(dtype, reduction):
    scores, labels = sample(dtype=dtype)
    found = pair_derivatives(scores, labels, surrogate="huber_hinge", reduction=reduction)
    assert found.value.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    assert found.grad.dtype is found.hess.dtype is dtype
    wanted = naive.pair_derivatives(
        scores.double().numpy(), labels.numpy(), surrogate="huber_hinge", reduction=reduction
    )
    assert_equal(found, wanted, max(1e-12, torch.finfo(dtype).eps))


@pytest.mark.parametrize("tasks", [1, 3])
def test_each_task_has_its_own_value_and_columns(tasks):
    scores, labels = sample((40, tasks), torch.float64)
    labels = labels.double()
    labels[5] = torch.nan  # missing in every task
    labels[:, -1] = 1.0 if tasks > 1 else labels[:, -1]  # one class
    weights, groups = torch.arange(40) % 3, torch.arange(40) % 2
    options = {"weights": weights, "groups": groups}
    found = pair_derivatives(scores, labels, **options)
    assert found.value.shape == (tasks,)
    assert found.grad.shape == found.hess.shape == scores.shape
    leaf = scores.clone().requires_grad_()
    values = pair_loss(leaf, labels, reduction="none", **options)
    values.sum().backward()
    torch.testing.assert_close(found.value, values.detach())
    torch.testing.assert_close(found.grad, leaf.grad)
    known = ~labels[:, 0].isnan()
    alone = pair_derivatives(
        scores[known, 0], labels[known, 0], weights=weights[known], groups=groups[known]
    )
    torch.testing.assert_close(found.hess[known, 0], alone.hess)
    assert not found.hess[5].any()
    assert found.value[-1] == 0.0 or tasks == 1
    assert not found.hess[:, -1].any() or tasks == 1


def test_hess_is_clamped_to_the_range_of_the_type():
    scores, labels = torch.zeros(2, dtype=torch.float16), torch.tensor([1, 0])
    found = pair_derivatives(
        scores, labels, weights=torch.tensor([1e3, 1e3]), reduction="sum", margin=0.5
    )
    assert found.hess.tolist() == [torch.finfo(torch.float16).max] * 2


@pytest.mark.parametrize("column", [0, 1])
def test_a_score_that_is_not_finite_affects_its_own_task_only(column):
    scores, labels = sample((40, 2))
    scores[7, column] = torch.inf
    found = pair_derivatives(scores, labels, check=False)
    alone = pair_derivatives(scores[:, 1 - column], labels[:, 1 - column])
    for tensor, sound in zip(found, alone, strict=True):
        assert tensor[..., column].isnan().all()
        torch.testing.assert_close(tensor[..., 1 - column], sound)
    losses = pair_loss(scores.requires_grad_(), labels, check=False, reduction="none")
    assert losses.isnan().tolist() == [column == 0, column == 1]
    with pytest.raises(ValueError, match=f"in column {column}, scores must be finite; got inf"):
        pair_derivatives(scores, labels, check=True)


def test_only_the_requested_derivatives_are_computed():
    scores, labels = sample()
    options = LossOptions(((1.0, 0.0, 0.0, 1.0, True),), check=False)
    result = evaluate(scores, labels, None, None, options, hess=True)
    assert result.grad is None
    assert result.hvp is None
    torch.testing.assert_close(result.hess, pair_derivatives(scores, labels).hess)
    product = evaluate(scores, labels, None, None, options, vector=scores)
    assert product.hvp is not None
    assert product.grad is None
    assert product.hess is None


def test_bad_arguments_raise():
    scores, labels = sample()
    with pytest.raises(ValueError, match=r"reduction must be 'mean' .* got 'none'"):
        pair_derivatives(scores, labels, reduction="none")
    with pytest.raises(ValueError, match="labels must have the shape"):
        pair_derivatives(scores, labels[:5])
    with pytest.raises(ValueError, match="margin must"):
        pair_derivatives(scores, labels, margin=-1.0)
