"""Precision is kept in programs as users compile them, which XLA rearranges."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import everypair as ep
from everypair.arrays.double_double import Number, each, two_sum
from everypair.arrays.rows import Runs
from everypair.jax import pair_loss
from everypair.jax._arrays import JaxArrays

from ..extreme_cases import (
    SMALL,
    assert_exact,
    assert_exact_beside_outliers,
    assert_exact_groups,
    assert_exact_product,
)
from ..tolerances import assert_close
from .backends import JaxBackend


def exact(a):
    return np.asarray(a.high, np.float64) + np.asarray(a.low, np.float64)


def test_sums_and_products_keep_twice_the_digits_under_jit():
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=10_001).astype(np.float32) * 2.0 ** rng.integers(-9, 9) for _ in "ab")
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)

    @jax.jit
    def all_of_them(a, b):
        xp = JaxArrays(a.dtype)
        rows = xp.row_numbers(a)
        runs = Runs(xp, rows, *xp.bounds(rows >= 5000))
        product = xp.times(Number(a), Number(b))
        return (
            two_sum(a, b),
            product,
            xp.plus(product, xp.times(product, Number(a))),
            each(lambda part: part[0], xp.total(product)),
            xp.prefix(product, runs),
        )

    total, product, chained, summed, sums = map(exact, all_of_them(a, b))
    assert (total == wide_a + wide_b).all()
    exact_product = wide_a * wide_b
    np.testing.assert_allclose(product, exact_product, rtol=2e-14)
    assert np.abs(chained - exact_product * (1 + wide_a)).max() <= 1e-13 * np.abs(chained).max()
    size = np.abs(exact_product).sum()
    assert abs(summed - exact_product.sum()) <= 1e-12 * size
    expected = np.concatenate([np.cumsum(half) for half in np.split(exact_product, [5000])])
    assert np.abs(sums - expected).max() <= 1e-12 * size


@pytest.mark.parametrize("name", ["square", "squared_hinge", "huber_hinge"])
def test_a_hundred_thousand_rows_at_an_offset(name):
    rng = np.random.default_rng(1)
    labels = rng.random(100_000) < 0.1
    scores = (rng.normal(size=labels.size) + labels + 1e3).astype(np.float32)
    vector = rng.normal(size=labels.size).astype(np.float32)
    wide = scores.astype(np.float64)
    value, grad = ep.pair_loss_and_grad(wide, labels, surrogate=name)
    product = ep.pair_hvp(wide, labels, vector, surrogate=name)

    def loss(x):
        return pair_loss(x, labels, surrogate=name)

    (got, got_grad), (slope, got_product) = jax.jvp(
        jax.value_and_grad(loss), (jnp.asarray(scores),), (jnp.asarray(vector),)
    )
    assert_close(got, value, np.float32)
    assert_close(got_grad, grad, np.float32)
    assert_close(got_product, product, np.float32)
    assert_close(slope, grad @ vector, np.float32, scale=np.abs(grad * vector).sum())


@pytest.mark.parametrize("pairs", ["binary", "ordered"])
def test_products_with_vectors_and_weights_of_any_size(pairs):
    assert_exact_product(JaxBackend(), np.float32, pairs, "squared_hinge", of_gradient=True)


@pytest.mark.parametrize("size", [1e12, -1e12, 1e26])
def test_a_distant_score_of_the_own_class_costs_no_digits(size):
    assert_exact_beside_outliers(JaxBackend(), np.float32, size)


@pytest.mark.parametrize("pairs", ["binary", "ordered"])
def test_groups_whose_weights_differ_by_more_than_float32_has_digits(pairs):
    assert_exact_groups(JaxBackend(), np.float32, pairs, "squared_hinge", 2.0**27)


# Every surrogate and every number of rows compiles new programs. Left out are weights of groups
# that differ by more digits than two float32 numbers have, and denormal scores, which XLA takes for
# zero.
COMPILED = [
    name
    for name in SMALL
    if name.split(", ")[-4] in ("huber_hinge", "capped", "squared_hinge")
    and not (name.startswith("a heavy group") and name.endswith("float32"))
    and not name.startswith("denormal scores")
]


@pytest.mark.parametrize("name", COMPILED)
def test_results_are_exact(name):
    assert_exact(JaxBackend(), name)


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
