"""First and second derivatives, forward and reverse, and the transforms of torch.func."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch.autograd import functional, gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jacrev, vmap

from everypair import naive
from everypair.torch import PairLoss, pair_loss

# Forward mode is scripted by torch itself, which then warns of its own scripts.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def away_from_knots(n=9, seed=0, columns=None):
    """Return scores whose differences are not close to a knot of any surrogate, for any labels."""
    generator = torch.Generator().manual_seed(seed)
    shape = torch.Size((n,) if columns is None else (n, columns))
    whole = torch.randint(-8, 9, shape, generator=generator)
    # Fractions below a quarter, different in each row, so no difference is a multiple of a half.
    fraction = torch.linspace(0.01, 0.24, shape.numel()).reshape(shape)
    return (whole / 2 + fraction).double().requires_grad_()


LABELS = torch.tensor([1, 0, 0, 1, 0, 1, 0, 0, 1])
OPTIONS = {
    "plain": {},
    "sum": {"reduction": "sum", "margin": 0.5},
    "weights": {"weights": torch.tensor([1.0, 2, 0, 3, 1, 1, 0.5, 2, 1])},
    "groups": {"groups": torch.tensor([5, 5, 5, 2, 2, 2, 2, 5, 5])},
}


@pytest.mark.parametrize("surrogate", ["huber_hinge", "exponential"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_derivatives_are_those_of_finite_differences(torch_backend, surrogate, options):
    def loss(scores):
        return pair_loss(scores, LABELS, surrogate=surrogate, **options)

    scores = (away_from_knots(),)
    assert gradcheck(loss, scores, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(loss, scores, check_fwd_over_rev=True, check_batched_grad=True)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_derivatives_of_several_tasks(reduction):
    labels = torch.stack([LABELS, 1 - LABELS, torch.ones(9)], 1)
    labels[2, 0] = torch.nan

    def loss(scores):
        return pair_loss(scores, labels, reduction=reduction)

    scores = away_from_knots(columns=3)
    assert gradcheck(loss, (scores,))
    assert gradgradcheck(loss, (scores,))


def test_a_retained_graph_gives_the_gradient_again():
    scores = away_from_knots()
    loss = pair_loss(scores, LABELS)
    loss.backward(retain_graph=True)
    once = scores.grad.clone()
    scores.grad.zero_()  # must not change a tensor that the graph still uses
    loss.backward(torch.tensor(2.0, dtype=torch.float64), retain_graph=True)
    torch.testing.assert_close(scores.grad, 2 * once)
    loss.backward()
    torch.testing.assert_close(scores.grad, 3 * once)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    with torch.no_grad():
        assert not pair_loss(scores, LABELS).requires_grad
    assert not pair_loss(scores.detach(), LABELS).requires_grad


def test_scores_changed_in_place_raise_in_backward():
    scores = away_from_knots()
    moved = scores * 1.0
    (first,) = torch.autograd.grad(pair_loss(moved, LABELS), moved, create_graph=True)
    with torch.no_grad():
        moved.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(first.square().sum(), moved)


def test_checkpointing_recomputes_the_loss():
    scores = away_from_knots()
    loss = torch.utils.checkpoint.checkpoint(pair_loss, scores, LABELS, use_reentrant=False)
    loss.backward()
    want = grad(lambda s: pair_loss(s, LABELS))(scores.detach())
    torch.testing.assert_close(scores.grad, want)


def test_strided_scores_are_allowed():
    table = away_from_knots(columns=2)
    pair_loss(table[:, 1], LABELS).backward()
    want = grad(lambda s: pair_loss(s, LABELS))(table[:, 1].detach().clone())
    torch.testing.assert_close(table.grad[:, 1], want)
    assert not table.grad[:, 0].any()


def test_all_ways_to_compute_the_hessian_equal_the_double_sum():
    def loss(scores):
        return pair_loss(scores, LABELS)

    scores = away_from_knots().detach()
    columns = [naive.pair_hvp(scores.numpy(), LABELS.numpy(), column) for column in np.eye(9)]
    want, vector = torch.tensor(np.stack(columns)), torch.linspace(-1, 1, 9, dtype=torch.float64)
    for made in (hessian(loss), jacrev(jacrev(loss)), partial(functional.hessian, loss)):
        torch.testing.assert_close(made(scores), want)
    for product in (
        torch.func.jvp(grad(loss), (scores,), (vector,))[1],
        torch.func.vjp(grad(loss), scores)[1](vector)[0],
        # Reverse mode twice: the vector-Jacobian product is linear in a dummy vector.
        functional.hvp(loss, scores, vector)[1],
    ):
        torch.testing.assert_close(product, want @ vector)


def test_third_derivatives_vanish_between_knots_or_raise():
    def hessian_matrix(scores):
        return hessian(lambda s: pair_loss(s, LABELS))(scores)

    def product(surrogate):
        loss = pair_loss(scores, LABELS, surrogate=surrogate)
        (first_grad,) = torch.autograd.grad(loss, scores, create_graph=True)
        return torch.autograd.grad(first_grad.square().sum(), scores, create_graph=True)[0]

    scores = away_from_knots()
    with pytest.raises(RuntimeError, match="differentiated three times"):
        product("logistic").sum().backward()
    tangents = (torch.rand(9).double(),)
    assert not torch.func.jvp(hessian_matrix, (scores.detach(),), tangents)[1].any()
    hvp = product("squared_hinge")
    # Only the second derivative of the square remains: the Hessian squared.
    (found,) = torch.autograd.grad(hvp.sum(), scores)
    matrix = hessian_matrix(scores.detach())
    torch.testing.assert_close(found, 2 * matrix @ matrix.sum(0))


@pytest.mark.parametrize("pairs", ["binary", "ordered"])
@pytest.mark.parametrize("in_dims", [(0, 0, 0, 0), (0, None, None, None), (None, 0, 0, None)])
def test_vmap_over_scores_labels_weights_and_groups(torch_backend, pairs, in_dims):
    generator = torch.Generator().manual_seed(0)
    many = [
        torch.stack([away_from_knots(seed=k).detach() for k in range(4)]),
        torch.stack([LABELS.roll(k) for k in range(4)]),
        torch.rand(4, 9, generator=generator),
        torch.randint(0, 2, (4, 9), generator=generator),
    ]

    def loss(scores, labels, weights, groups):
        return pair_loss(scores, labels, weights=weights, groups=groups, pairs=pairs)

    def batch(k):
        return [b[0 if d is None else k] for b, d in zip(many, in_dims, strict=True)]

    want = torch.stack([loss(*batch(k)) for k in range(4)])
    given = [b[0] if d is None else b for b, d in zip(many, in_dims, strict=True)]
    torch.testing.assert_close(vmap(loss, in_dims)(*given), want)
    by_column = [None if d is None else -1 for d in in_dims]
    given = [b if d is None else b.T for b, d in zip(given, in_dims, strict=True)]
    torch.testing.assert_close(vmap(loss, tuple(by_column))(*given), want)


def test_vmap_inside_vmap_and_around_grad():
    scores = torch.stack([away_from_knots(seed=k).detach() for k in range(6)]).reshape(2, 3, 9)

    def loss(scores):
        return pair_loss(scores, LABELS)

    want = torch.stack([loss(s) for s in scores.reshape(6, 9)]).reshape(2, 3)
    torch.testing.assert_close(vmap(vmap(loss))(scores), want)
    grads = vmap(vmap(grad(loss)))(scores)
    torch.testing.assert_close(grads[1, 2], grad(loss)(scores[1, 2]))
    through = grad(lambda s: vmap(vmap(loss))(s).sum())(scores)
    torch.testing.assert_close(through, grads)


def test_functional_call_of_the_loss_module():
    criterion = PairLoss()
    state = {"n_one_class": torch.tensor(5)}
    scores = away_from_knots()
    loss = functional_call(criterion, state, (scores, LABELS))
    assert loss == criterion(scores, LABELS)
    first_grad = grad(lambda s: functional_call(criterion, state, (s, torch.ones(9))))(
        scores.detach()
    )
    assert not first_grad.any()
    assert state["n_one_class"] == 6
    assert criterion.n_one_class == 0
