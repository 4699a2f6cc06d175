"""Inputs whose sums overflow, vanish or lose digits in plain double precision."""

from __future__ import annotations

import numpy as np
import pytest

import everypair as ep

from .extreme_cases import ALONE, LABELS, WEIGHTS, _scores, _weights, assert_exact


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_of_any_size(backend, case):
    scores, knobs = WEIGHTS[case]
    assert_exact(backend, scores, LABELS, **knobs)


@pytest.mark.parametrize("case", ALONE)
def test_a_row_of_weight_zero_changes_nothing(backend, case):
    scores, labels, weights = ALONE[case]
    assert_exact(backend, scores, labels, weights=weights)


@pytest.mark.parametrize("factor", [1e160, 1e-160, 1e-170, 1e300, 5e-324])
def test_auc_does_not_depend_on_the_scale_of_the_weights(backend, factor):
    ones = np.ones(LABELS.size)
    expected = backend.auc(_scores(), LABELS, weights=ones)
    assert backend.auc(_scores(), LABELS, weights=factor * ones) == pytest.approx(expected, 1e-14)


def test_one_class_with_weights_has_no_pair(backend):
    weights = np.where(LABELS, 0.0, _weights())
    value, grad = backend.loss_and_grad(_scores(), LABELS, weights=weights)
    assert value == 0.0
    assert not grad.any()


def test_an_offset_of_the_vector_costs_no_digits(backend):
    vector = np.random.default_rng(5).integers(-4, 5, LABELS.size) / 8.0  # exact after the offset
    expected = backend.hvp(_scores(), LABELS, vector)
    found = backend.hvp(_scores(), LABELS, vector + 2.0**40)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12 * abs(expected).max())


def test_absurd_numbers_of_threads():
    rng = np.random.default_rng(6)
    scores, labels = rng.normal(size=100_000), np.arange(100_000) % 2
    expected = ep.pair_loss(scores, labels)
    try:
        ep.set_num_threads(100_000)
        assert ep.pair_loss(scores, labels) == expected
        with pytest.raises(ValueError, match=r"threads must be .* got 2147483648"):
            ep.set_num_threads(2**31)
    finally:
        ep.set_num_threads(None)


def test_constant_weights_do_not_drift(backend):
    n = 10**6
    rng = np.random.default_rng(7)
    scores, labels = rng.normal(size=n), rng.random(n) < 0.5
    value, grad = backend.loss_and_grad(scores, labels)
    weighted, weighted_grad = backend.loss_and_grad(scores, labels, weights=np.full(n, 0.1))
    assert weighted == pytest.approx(value, rel=1e-12)
    assert abs(weighted_grad - grad).max() <= 1e-12 * abs(grad).max()
