"""The paper's algorithms and the recursions of its two theorems, against double sums."""

from __future__ import annotations

import numpy as np
import pytest

import everypair as ep
from everypair import paper

N_BATCHES = 1000


def batches():
    """Yield scores, labels and margins: ties and pairs on the knot in half, some of one class."""
    rng = np.random.default_rng(0)
    for i in range(N_BATCHES):
        n = int(rng.integers(1, 40))
        scores = 1.5 * rng.standard_normal(n)
        if i % 2:
            scores = np.round(2 * scores) / 2
        labels = np.where(rng.random(n) < rng.choice([0.1, 0.5, 0.9]), 1, -1)
        yield scores, labels, float(rng.choice([0.0, 0.5, 1.0, 2.0]))


def shortfalls(scores, labels, margin):
    """Return the (positives, negatives) matrix of shortfalls."""
    return margin - scores[labels == 1][:, None] + scores[labels == -1]


def test_the_batches_have_ties_pairs_on_the_knot_and_one_class():
    found = [(*batch, shortfalls(*batch)) for batch in batches()]
    assert sum(pairs.size == 0 for *_, pairs in found) > 50
    assert sum((pairs == 0.0).any() for *_, pairs in found) > 200
    assert sum(len(set(scores)) < len(scores) for scores, *_ in found) > 200


@pytest.mark.parametrize(
    ("algorithm", "surrogate"),
    [
        (paper.algorithm_1, "square"),
        (paper.algorithm_2, "squared_hinge"),
        (paper.algorithm_2_backward, "squared_hinge"),
    ],
)
def test_equals_pair_loss(algorithm, surrogate):
    for scores, labels, margin in batches():
        expected = ep.pair_loss(scores, labels, surrogate=surrogate, margin=margin, reduction="sum")
        error = abs(algorithm(scores, labels, margin) - expected)
        assert error <= 1e-12 * expected


def test_theorem_1_after_each_positive_and_each_negative():
    """The loop invariants of the proof: h_1 + ... + h_t is the polynomial, and L is its sum."""
    rng = np.random.default_rng(1)
    y_pos, y_neg, m = rng.standard_normal(12), rng.standard_normal(9), 0.75
    for t in range(y_pos.size + 1):
        for u in range(y_neg.size + 1):
            pairs = (m - y_pos[:t][:, None] + y_neg[:u]) ** 2
            z = m - y_pos[:t]
            a, b, c = t, 2 * z.sum(), (z**2).sum()
            polynomial = a * y_neg[:u] ** 2 + b * y_neg[:u] + c
            np.testing.assert_allclose(polynomial, pairs.sum(axis=0), rtol=1e-12, atol=1e-12)
            if t + u:
                scores, labels = np.r_[y_pos[:t], y_neg[:u]], np.r_[np.ones(t), -np.ones(u)]
                np.testing.assert_allclose(
                    paper.algorithm_1(scores, labels, m), pairs.sum(), rtol=1e-12
                )


def test_theorem_2_the_recursion_at_every_row():
    for scores, labels, m in batches():
        s, a, b, c, L = paper.recursion(scores, labels, m)
        v = scores + m * (labels == -1)
        assert (np.diff(v[s]) >= 0.0).all()
        for i in range(1, scores.size + 1):
            y_hat, y = scores[s[:i]], labels[s[:i]]
            y_pos = y_hat[y == 1]
            expected = [len(y_pos), (2 * (m - y_pos)).sum(), ((m - y_pos) ** 2).sum()]
            # H_i(x), the sum of the first functions h, is the polynomial with these coefficients.
            x = 0.5
            H = ((x + m - y_pos) ** 2).sum()
            hinge = np.maximum(shortfalls(y_hat, y, m), 0.0) ** 2
            results = [a[i - 1], b[i - 1], c[i - 1], x**2 * a[i - 1] + x * b[i - 1] + c[i - 1]]
            for got, exact in zip([*results, L[i - 1]], [*expected, H, hinge.sum()], strict=True):
                assert abs(got - exact) <= 1e-12 * max(abs(exact), 1.0)
        assert abs(L[-1] - paper.algorithm_2(scores, labels, m)) <= 1e-12 * L[-1]


def test_forward_and_backward_give_the_gradient_of_one_class_each():
    for scores, labels, m in batches():
        _, grad = ep.pair_loss_and_grad(scores, labels, margin=m, reduction="sum")
        s, a, b, *_ = paper.recursion(scores, labels, m)
        forward = 2 * a * scores[s] + b  # the slope of H_i at the score of row i
        negative = labels[s] == -1
        np.testing.assert_allclose(forward[negative], grad[s][negative], rtol=0, atol=1e-11)
        # The pairs are the same if all scores change their signs and the classes their roles.
        s, a, b, *_ = paper.recursion(-scores, -labels, m)
        backward = -(2 * a * -scores[s] + b)
        positive = labels[s] == 1
        np.testing.assert_allclose(backward[positive], grad[s][positive], rtol=0, atol=1e-11)


def test_input_is_checked_as_by_pair_loss():
    with pytest.raises(ValueError, match="labels must hold two classes"):
        paper.algorithm_1([0.0, 1.0], [0, 2])
    with pytest.raises(ValueError, match="margin"):
        paper.algorithm_2([0.0, 1.0], [0, 1], margin=-1.0)
    with pytest.raises(ValueError, match=r"scores.*nan"):
        paper.algorithm_2_backward([0.0, np.nan], [0, 1])
