"""Whether a pair counts is decided exactly, for the real numbers that the floats are."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from everypair.surrogates import Surrogate, Term

from .extreme_cases import ON_THE_KNOT, assert_exact

JUMP = Surrogate("jump", [Term(1, 0, 0, knot=0)])
# Scores whose differences come close to a margin, hit it, or drown in rounding.
SCORES = st.one_of(
    st.integers(-30, 30).map(lambda k: k / 10),
    st.integers(-300, 300).map(lambda k: k / 100),
    st.sampled_from([-1.0, 1e-17, 2e-17, -1e-17, 0.0, 1 - 1e-16, -1e8, 1e17, -1e17, 1e6 + 0.1]),
    st.floats(-1e3, 1e3),
)


def active_pairs(scores, labels, margin):
    """Return the positives, the negatives and the matrix of pairs with s_neg + margin > s_pos."""
    exact = [Fraction(float(score)) for score in scores]
    pos = [i for i, label in enumerate(labels) if label]
    neg = [i for i, label in enumerate(labels) if not label]
    counts = [[exact[j] + Fraction(margin) > exact[i] for j in neg] for i in pos]
    return pos, neg, np.array(counts, bool).reshape(len(pos), len(neg))


@settings(max_examples=150)
@given(
    rows=st.lists(st.tuples(SCORES, st.booleans()), min_size=2, max_size=40),
    margin=st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0, 1e-17, 2.0]),
    dtype=st.sampled_from([np.float32, np.float64]),
    weighted=st.booleans(),
)
@example([(-0.3, True), (0.0, True), (-1.0, False)], 1.0, np.float64, False)
@example([(-1.0, True), (1e-17, True), (2e-17, False)], 0.0, np.float64, False)
@example([(-1e17, True), (0, False), (1, True), (2, False), (3, True)], 1.0, np.float32, False)
@example([(1e-17, True), (-1.0, False)], 1.0, np.float32, False)
def test_the_active_pairs_are_exact(backend, rows, margin, dtype, weighted):
    scores = np.array([score for score, _ in rows], dtype)
    labels = np.array([label for _, label in rows])
    pos, neg, active = active_pairs(scores, labels, margin)
    knobs = {"margin": margin, "reduction": "sum"}
    if weighted:
        knobs["weights"] = np.ones(len(rows))
    counts = np.zeros(len(rows))
    counts[pos], counts[neg] = active.sum(1), active.sum(0)
    sign = np.where(labels, -1.0, 1.0)

    value, grad, _ = backend.derivatives(scores, labels, surrogate=JUMP, **knobs)
    assert value == active.sum()
    assert not grad.any()
    _, grad, _ = backend.derivatives(scores, labels, surrogate="linear_hinge", **knobs)
    np.testing.assert_array_equal(grad, sign * counts)
    _, _, hess = backend.derivatives(scores, labels, surrogate="squared_hinge", **knobs)
    np.testing.assert_array_equal(hess, 2 * counts)


@pytest.mark.parametrize("n", [3_000, 40_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_rows_on_a_grid(backend, n, dtype):
    # In units of 0.01, scores and margin are whole numbers: pairs on the knot are then known.
    rng = np.random.default_rng(n)
    units = rng.integers(-300, 300, n)
    labels = rng.random(n) < 0.3
    scores = units.astype(dtype) / dtype(128)  # exact in binary
    below = np.sort(units[labels])
    counts = np.searchsorted(below, units[~labels] + 128)
    _, grad, _ = backend.derivatives(
        scores, labels, surrogate="linear_hinge", margin=1.0, reduction="sum"
    )
    np.testing.assert_array_equal(grad[~labels], counts)
    jump, _, _ = backend.derivatives(scores, labels, surrogate=JUMP, reduction="sum")
    assert jump == counts.sum()


@pytest.mark.parametrize("case", ON_THE_KNOT)
def test_all_derivatives_next_to_a_knot(backend, case):
    scores, labels, margin, surrogate = ON_THE_KNOT[case]
    assert_exact(backend, scores, labels, margin=margin, surrogate=surrogate)


def test_the_gradient_of_a_pair_on_the_knot(backend):
    loss, grad = backend.loss_and_grad([-0.3, 0.0, -1.0], [1, 1, 0], surrogate="linear_hinge")
    assert loss == pytest.approx(0.15, rel=1e-15)
    assert grad.tolist() == [-0.5, 0.0, 0.5]
