"""grad, jit, vmap, jvp and Hessian-vector products, in any order, against the double sum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import everypair as ep
from everypair.jax import pair_loss

from ..strategies import BUMPY
from ..tolerances import assert_close
from .backends import quick_compilation

N = 37


@pytest.fixture(scope="module", autouse=True)
def quick():
    with quick_compilation():
        yield


def batch(seed=0, n=N):
    rng = np.random.default_rng(seed)
    return rng.normal(size=n).astype(np.float32), rng.random(n) < 0.4


@pytest.fixture(scope="module")
def loss():
    labels = batch()[1]
    return lambda scores: pair_loss(scores, labels, surrogate=BUMPY)


@pytest.mark.parametrize(
    "way",
    [
        lambda loss, v: lambda x: jax.jvp(jax.grad(loss), (x,), (v,))[1],
        lambda loss, v: jax.grad(lambda x: jax.jvp(loss, (x,), (v,))[1]),
        lambda loss, v: jax.jit(jax.grad(lambda x: jax.grad(loss)(x) @ v)),
        lambda loss, v: lambda x: jax.hessian(loss)(x) @ v,
    ],
    ids=["forward over reverse", "reverse over forward", "reverse over reverse, compiled", "whole"],
)
def test_products_with_the_hessian_in_every_mode(loss, way):
    (scores, labels), (v, _) = batch(0), batch(1)
    expected = ep.naive.pair_hvp(scores.astype(np.float64), labels, v, surrogate=BUMPY)
    assert_close(way(loss, jnp.asarray(v))(jnp.asarray(scores)), expected, np.float32)


def test_third_derivatives_are_zero_or_raise(loss):
    scores, v = (jnp.asarray(batch(seed)[0]) for seed in (0, 1))

    def third(loss):
        return jax.grad(lambda x: jax.jvp(jax.grad(loss), (x,), (v,))[1].sum())(scores)

    assert not third(loss).any()
    with pytest.raises(ValueError, match="differentiated three times"):
        third(lambda x: pair_loss(x, batch()[1], surrogate="exponential"))


def test_vmap_is_a_loop():
    scores, labels = (np.stack(a) for a in zip(*map(batch, range(3)), strict=True))
    margins = jnp.array([0.0, 0.5, 1.0])

    def gradient(x, y, margin):
        return jax.grad(pair_loss)(x, y, margin=margin)

    together = jax.jit(jax.vmap(gradient))(scores, labels, margins)
    for i, grad in enumerate(together):
        expected = ep.naive.pair_loss_and_grad(
            scores[i].astype(np.float64), labels[i], margin=float(margins[i])
        )[1]
        assert_close(grad, expected, np.float32)
    tasks = jax.vmap(pair_loss, in_axes=1)(scores.T, labels.T)
    assert_close(tasks[2], pair_loss(scores[2], labels[2]), np.float32)


def test_a_margin_and_weights_may_be_traced_but_not_differentiated():
    scores, labels = batch()
    weights = jnp.ones(N)
    traced = jax.jit(lambda m, w: pair_loss(scores, labels, margin=m, weights=w))(0.3, weights)
    assert_close(traced, pair_loss(scores, labels, margin=0.3), np.float32)
    with pytest.raises(ValueError, match="margin must not be differentiated"):
        jax.grad(lambda m: pair_loss(scores, labels, margin=m))(0.3)
    with pytest.raises(ValueError, match="weights must not be differentiated"):
        jax.grad(lambda w: pair_loss(scores, labels, weights=w))(weights)
    # Next to scores that are differentiated, a constant made of parameters has to say so.
    stopped = jax.grad(lambda x: pair_loss(x, labels, weights=jax.lax.stop_gradient(jnp.exp(x))))(
        scores
    )
    assert stopped.shape == (N,)


def test_remat_and_loops_keep_the_gradient(loss):
    scores = jnp.asarray(batch()[0])
    grad = jax.grad(loss)(scores)
    assert_close(jax.grad(jax.checkpoint(loss))(scores), grad, np.float32)

    def stepped(x):
        return jax.lax.scan(lambda total, s: (total + s * loss(x), None), 0.0, jnp.ones(3))[0]

    assert_close(jax.jit(jax.grad(stepped))(scores), 3 * grad, np.float32)


def test_one_class_trains_on_nothing():
    for positive in (True, False):
        value, grad = jax.value_and_grad(pair_loss)(jnp.ones(N), jnp.full(N, positive))
        assert value == 0.0
        assert not grad.any()
        assert not jnp.signbit(grad).any()
    assert float(pair_loss(jnp.ones(1), jnp.ones(1))) == 0.0


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_narrow_scores_have_a_wide_loss_and_a_narrow_gradient(dtype):
    scores, labels = batch()
    narrow = jnp.asarray(scores).astype(dtype)
    value, grad = jax.value_and_grad(pair_loss)(narrow, labels)
    exact = ep.naive.pair_loss_and_grad(np.asarray(narrow, np.float64), labels)
    assert value.dtype == np.float32
    assert grad.dtype == dtype
    assert_close(value, exact[0], np.float32)
    assert np.abs(np.asarray(grad, np.float64) - exact[1]).max() <= 0.01 * np.abs(exact[1]).max()


@pytest.mark.parametrize(("name", "sorts"), [("square", False), ("squared_hinge", True)])
def test_a_surrogate_without_knots_sorts_nothing(name, sorts):
    scores, labels = batch()

    def loss(x):
        return pair_loss(x, labels, surrogate=name)

    def product(x):
        return jax.jvp(jax.grad(loss), (x,), (x,))[1]

    for derivative in (loss, jax.grad(loss), product):
        assert ("sort[" in str(jax.make_jaxpr(derivative)(scores))) == sorts
