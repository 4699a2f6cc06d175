"""Row sums, soft ranks and Spearman's correlation on tensors: values and both derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch.autograd import gradcheck, gradgradcheck

import everypair as ep
from everypair.torch import pair_row_sums, soft_ranks, spearman_loss

from .test_autograd import away_from_knots

GROUPS = torch.tensor([3, 3, 1, 1, 3, 1, 1, 3, 3]), torch.tensor([1, 3, 3, 1, 7])


def tensors():
    """Return rows (9,), others (5,) and weights (5,) of both signs, away from all knots."""
    scores = away_from_knots(14).detach() / 2
    rows, others = scores[:9].clone(), scores[9:].clone()
    weights = torch.tensor([0.5, -1.0, 2.0, 0.25, 1.0]).double()
    return tuple(t.requires_grad_() for t in (rows, others, weights))


@pytest.mark.parametrize("surrogate", ["huber_hinge", "logistic"])
@pytest.mark.parametrize("kind", ["others", "groups", "groups, without others"])
def test_derivatives_are_those_of_finite_differences(surrogate, kind, torch_backend):
    options = {"surrogate": surrogate, "margin": 0.5}
    if "groups" in kind:
        options["groups"] = GROUPS[0]
    if kind == "groups":
        options["other_groups"] = GROUPS[1]
    rows, others, weights = tensors()
    if "without" in kind:
        others, weights = None, torch.linspace(-1.0, 2.0, 9).double().requires_grad_()

    def sums(rows, weights, others=others):
        return pair_row_sums(rows, others, weights=weights, **options)

    inputs = tuple(tensor for tensor in (rows, weights, others) if tensor is not None)
    assert gradcheck(sums, inputs)
    assert gradgradcheck(sums, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(300, 40), (40, 300), (200, None)])
def test_values_are_those_of_the_double_sum(dtype, sizes, torch_backend):
    generator = torch.Generator().manual_seed(0)
    n, m = sizes
    rows = torch.randn(n, generator=generator, dtype=dtype).round(decimals=1)
    others = None if m is None else torch.randn(m, generator=generator, dtype=dtype)
    options = {"weights": torch.randn(m or n, generator=generator, dtype=dtype)}
    options["groups"] = torch.arange(n) % 3
    if m is not None:
        options["other_groups"] = torch.arange(m) % 4
    got = pair_row_sums(rows, others, **options)
    assert got.dtype is dtype
    arrays = {name: tensor.numpy() for name, tensor in options.items()}
    expected = ep.naive.pair_row_sums(rows, others, **arrays)
    tolerance = 1e-12 if dtype is torch.float64 else 1e-6
    np.testing.assert_allclose(got.numpy(), expected, atol=tolerance * (m or n))


def test_narrow_types_and_columns(torch_backend):
    rows = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.bfloat16, requires_grad=True)
    got = pair_row_sums(rows)
    assert got.dtype is torch.float32
    assert got.shape == (3,)
    got.sum().backward()
    assert rows.grad.dtype is torch.bfloat16
    assert rows.grad.shape == (3, 1)
    mixed = pair_row_sums(rows, torch.zeros(2, dtype=torch.float64))
    assert mixed.dtype is torch.float64


def test_scores_that_are_not_finite(torch_backend):
    scores = torch.tensor([0.0, torch.nan, 1.0])
    with pytest.raises(ValueError, match=r"scores must be finite; got nan \(first at index 1\)"):
        pair_row_sums(scores, check=True)
    assert pair_row_sums(scores, check=False).isnan().all()
    assert pair_row_sums(torch.zeros(2), scores, check=False).isnan().all()


def test_no_rows_and_no_others_stay_in_the_graph():
    rows = torch.zeros(2, requires_grad=True)
    sums = pair_row_sums(rows, torch.zeros(0))
    assert sums.tolist() == [0.0, 0.0]
    sums.sum().backward()
    assert rows.grad.tolist() == [0.0, 0.0]
    assert pair_row_sums(torch.zeros(0), rows).shape == (0,)


def test_a_third_derivative_is_refused_unless_it_is_zero():
    rows, others, _ = tensors()

    def second(surrogate):
        sums = pair_row_sums(rows, others, surrogate=surrogate)
        (first,) = torch.autograd.grad(sums.sum(), rows, create_graph=True)
        return torch.autograd.grad(first.sum(), rows, create_graph=True)[0]

    with pytest.raises(RuntimeError, match="must not be differentiated three times"):
        second("sigmoid").sum().backward()
    (third,) = torch.autograd.grad(second("square").sum(), rows, allow_unused=True)
    assert third is None or not third.any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scores": [0.0]}, "scores must be a tensor"),
        ({"others": torch.zeros(2, dtype=torch.int64)}, "must be floats"),
        ({"scores": torch.zeros(2, 2)}, r"scores must have the shape \(n,\) or \(n, 1\)"),
        ({"weights": torch.zeros(3)}, "weights must have the shape"),
        ({"groups": torch.zeros(2)}, "given together"),
        ({"groups": torch.zeros(2), "other_groups": torch.zeros(2)}, "groups must be whole"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        pair_row_sums(**{"scores": torch.zeros(2), "others": torch.zeros(2), **arguments})


def test_a_compiled_function_may_call_it():
    scores = torch.tensor([0.0, 1.0, 3.0])
    compiled = torch.compile(lambda x: 2.0 * pair_row_sums(x), backend="eager")
    torch.testing.assert_close(compiled(scores), 2.0 * pair_row_sums(scores))


def test_soft_ranks(torch_backend):
    scores = torch.tensor([3.0, 1.0, 2.0, 2.0])
    groups = torch.tensor([0, 0, 1, 1])
    assert soft_ranks(scores, 0.01).tolist() == pytest.approx([4.0, 1.0, 2.5, 2.5])
    assert soft_ranks(scores, 0.01, groups=groups).tolist() == pytest.approx([2.0, 1.0, 1.5, 1.5])
    got = soft_ranks(scores, 3.0)
    np.testing.assert_allclose(got.numpy(), ep.soft_ranks(scores, 3.0), rtol=1e-6)
    np.testing.assert_allclose(soft_ranks(scores).numpy(), ep.soft_ranks(scores), rtol=1e-6)
    assert gradgradcheck(lambda x: soft_ranks(x, 0.7), tensors()[:1])


def test_the_spearman_loss_is_that_of_scipy_when_cold():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(200, generator=generator, dtype=torch.float64)
    targets = (scores + torch.randn(200, generator=generator)).round(decimals=1)
    expected = 1.0 - spearmanr(scores, targets).statistic
    assert spearman_loss(scores, targets, 1e-6).item() == pytest.approx(expected, rel=1e-9)
    assert gradcheck(lambda x: spearman_loss(x, targets[:9]), tensors()[:1])
    assert gradgradcheck(lambda x: spearman_loss(x, targets[:9]), tensors()[:1])


def test_the_spearman_loss_of_equal_scores_and_of_equal_targets():
    scores = torch.zeros(3, requires_grad=True)
    loss = spearman_loss(scores, torch.tensor([1.0, 2.0, 4.0]))
    loss.backward()
    assert loss.item() == 1.0
    assert scores.grad[0] > 0.0 > scores.grad[2]  # towards the order of the targets
    loss = spearman_loss(scores, torch.ones(3))
    scores.grad = None
    loss.backward()
    assert (loss.item(), scores.grad.tolist()) == (0.0, [0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="targets must be real numbers and not NaN"):
        spearman_loss(scores, torch.tensor([1.0, torch.nan, 2.0]))
