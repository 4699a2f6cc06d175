"""The oracle itself: against numbers done by hand, and against finite differences of itself."""

from __future__ import annotations

import numpy as np
import pytest

from everypair import naive, surrogates

from .strategies import SURROGATES

# Shortfalls: positive 0.5 -> 0.5 and 1.5; positive 2 -> -1 and 0.
SCORES, LABELS = [0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0]


def test_by_hand():
    value, grad, hess = naive.pair_derivatives(SCORES, LABELS, reduction="sum")
    assert value == 0.5**2 + 1.5**2
    assert grad.tolist() == [-4.0, 0.0, 1.0, 3.0]
    assert hess.tolist() == [4.0, 0.0, 2.0, 2.0]
    assert naive.pair_loss(SCORES, LABELS) == 0.625
    assert naive.pair_loss(SCORES, LABELS, surrogate="square") == (0.25 + 2.25 + 1 + 0) / 4
    assert naive.pair_loss(SCORES, LABELS, surrogate="linear_hinge") == 0.5
    assert naive.pair_loss(SCORES, LABELS, surrogate="huber_hinge") == (0.125 + 1.0) / 4
    assert naive.auc(SCORES, LABELS) == 0.75
    assert naive.auc([1.0, 1.0], [0, 1]) == 0.5
    hvp = naive.pair_hvp(SCORES, LABELS, [1.0, 0.0, 0.0, 2.0], reduction="sum")
    assert hvp.tolist() == [2 * 1 - 2 * 1, 0.0, -2.0, 2.0]


def test_weights_and_groups_by_hand():
    assert naive.pair_loss(SCORES, LABELS, weights=[2, 1, 1, 3], reduction="sum") == 0.5 + 6 * 2.25
    assert naive.pair_loss(SCORES, LABELS, groups=list("abab")) == 0.125
    assert naive.pair_loss(SCORES, LABELS, weights=[0, 0, 1, 1]) == 0.0


@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda s: s.name)
def test_derivatives_are_derivatives(surrogate):
    rng = np.random.default_rng(7)
    scores, vector = rng.normal(size=(2, 12))
    labels, weights = rng.random(12) < 0.4, rng.random(12)
    knobs = {"surrogate": surrogate, "weights": weights, "groups": rng.integers(0, 2, 12)}
    _, grad, hess = naive.pair_derivatives(scores, labels, **knobs)
    hvp = naive.pair_hvp(scores, labels, vector, **knobs)
    step = 1e-6
    ahead, behind = (
        naive.pair_loss_and_grad(scores + sign * step * vector, labels, **knobs) for sign in (1, -1)
    )
    assert (ahead[0] - behind[0]) / (2 * step) == pytest.approx(grad @ vector, abs=1e-8)
    np.testing.assert_allclose((ahead[1] - behind[1]) / (2 * step), hvp, atol=1e-8)
    diagonal = [naive.pair_hvp(scores, labels, e, **knobs)[i] for i, e in enumerate(np.eye(12))]
    np.testing.assert_allclose(diagonal, hess, atol=1e-15)


def test_blocks_do_not_show(monkeypatch):
    rng = np.random.default_rng(8)
    scores, labels = rng.normal(size=50), rng.random(50) < 0.5
    whole = naive.pair_derivatives(scores, labels)
    monkeypatch.setattr(naive, "_PAIRS_PER_BLOCK", 64)
    for a, b in zip(whole, naive.pair_derivatives(scores, labels), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)


def test_huber_stays_exact_far_out():
    # Summing the terms' values would lose nine digits here.
    assert naive.pair_loss([-1e9, 0.0], [1, 0], surrogate=surrogates.HUBER_HINGE) == 1e9 + 0.5


def test_one_class():
    assert naive.pair_loss([1.0, 2.0], [1, 1]) == 0.0
    assert naive.pair_hvp([1.0, 2.0], [1, 1], [1.0, 1.0]).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="got no pair"):
        naive.auc([1.0, 2.0], [0, 0])
