"""Average precision, against scikit-learn and by hand; `test_metrics` has its laws."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics

import everypair as ep

from .tolerances import assert_close


def sample(n, *, ties, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.random(n) < 0.1
    scores = rng.normal(size=n) + labels
    return np.round(scores, 1) if ties else scores, labels, rng.random(n)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [50, 1000, 100_000])
def test_equals_scikit_learn(n, ties, weighted):
    scores, labels, weights = sample(n, ties=ties)
    weights = weights if weighted else None
    expected = sklearn.metrics.average_precision_score(labels, scores, sample_weight=weights)
    got = ep.average_precision(scores, labels, weights=weights)
    assert_close(got, expected, np.float64)


def test_by_hand():
    assert ep.average_precision([4, 3, 2, 1], [1, 0, 1, 0]) == pytest.approx((1 + 2 / 3) / 2)
    assert ep.average_precision([1, 1, 1, 1], [1, 0, 0, 0]) == 0.25  # all tied: the prevalence
    assert ep.average_precision([1, 2], [1, 1]) == 1.0
    by_user = {"groups": ["a", "a", "b", "b", "b", "c"], "average": "groups"}
    scores, labels = [1, 2, 3, 2, 1, 0], [1, 0, 1, 0, 0, 0]  # AP of a: 1/2, of b: 1, of c: none
    assert ep.average_precision(scores, labels, **by_user) == 0.75
    by_user["average"] = "rows"
    assert ep.average_precision(scores, labels, **by_user) == pytest.approx((2 * 0.5 + 3) / 5)


def test_negatives_of_huge_or_tiny_weight():
    scores, labels = [3.0, 2.0, 1.0], [1, 0, 1]
    assert ep.average_precision(scores, labels, weights=[1e-200, 1e200, 1e-200]) == 0.5
    assert ep.average_precision(scores, labels, weights=[1e200, 1e-200, 1e200]) == 1.0


def test_constant_weights_do_not_drift():
    scores, labels, _ = sample(500_000, ties=False)
    expected = ep.average_precision(scores, labels)
    got = ep.average_precision(scores, labels, weights=np.full(scores.size, 0.1))
    assert got == pytest.approx(expected, rel=1e-14)
