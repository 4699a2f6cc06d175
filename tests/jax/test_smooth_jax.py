"""Smooth surrogates in JAX: every entry of the gradient, the Hessian, margins and errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import everypair as ep
from everypair.jax import pair_loss

ROWS = 96  # one shape, because every shape compiles a new program


def batches(dtype):
    rng = np.random.default_rng(0)
    labels, weights, groups = np.arange(ROWS) % 3 == 0, rng.random(ROWS), rng.integers(0, 3, ROWS)
    for scale, offset in ((1.0, 0.0), (1.0, 1e6), (1e-6, 0.0), (1e6, 0.0), (20.0, 3.0)):
        scores = (rng.normal(size=ROWS) * scale + offset).astype(dtype)
        scores[::5] = scores[1]
        yield scores, labels, {"weights": weights.astype(dtype), "groups": groups}


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", ["sigmoid", "exponential", "squared_softplus"])
def test_every_entry_of_the_gradient_is_right(name, x64):
    dtype, tolerance, smallest = (np.float64, 1e-12, 1e-290) if x64 else (np.float32, 1e-6, 1e-36)
    with jax.enable_x64(x64):
        for scores, labels, data in batches(dtype):
            if name == "exponential" and np.ptp(scores) > 80.0:
                continue
            loss, grad = jax.value_and_grad(pair_loss)(scores, labels, surrogate=name, **data)
            value, expected = ep.naive.pair_loss_and_grad(
                scores.astype(float), labels, surrogate=name, **data
            )
            seen = np.abs(expected) > smallest
            ratio = np.asarray(grad, np.float64)[seen] / expected[seen]
            assert np.abs(ratio - 1.0).max(initial=0.0) <= tolerance
            assert float(loss) == pytest.approx(value, rel=tolerance)


def test_margins_are_traced_and_default_to_that_of_the_surrogate():
    scores, labels, data = next(batches(np.float32))
    options = {"surrogate": "sigmoid", **data}  # as above, so that no other program is compiled
    loss = jax.jit(lambda margin: pair_loss(scores, labels, margin=margin, **options))
    for margin in (0.0, 1.5):
        expected = ep.naive.pair_loss(scores, labels, margin=margin, **options)
        assert float(loss(margin)) == pytest.approx(expected, rel=1e-6)
    assert float(pair_loss(scores, labels, **options)) == float(loss(0.0))


@pytest.mark.parametrize("labels", [[1, 1, 0], [3, 2, 1]])
def test_an_exponential_loss_that_overflows_is_infinite(labels):
    def loss(scores):
        pairs = "ordered" if max(labels) > 1 else "binary"
        return pair_loss(scores, jnp.array(labels), surrogate="exponential", pairs=pairs)

    value, grad = jax.value_and_grad(loss)(jnp.array([0.0, 100.0, 300.0]))
    assert value == jnp.inf
    assert grad[0] < -1e38
    assert grad[2] > 1e38
    assert not jnp.isnan(grad).any()


def test_a_third_derivative_raises():
    scores, labels, data = next(batches(np.float32))

    def product(x):
        grad = jax.grad(lambda x: pair_loss(x, labels, surrogate="exponential", **data))
        return jax.jvp(grad, (x,), (jnp.ones_like(x),))[1].sum()

    with pytest.raises(ValueError, match="differentiated three times"):
        jax.make_jaxpr(jax.grad(product))(jnp.asarray(scores))  # traced, not compiled
