"""Average precision, against scikit-learn and the sum over all pairs of rows."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import assume, given
from hypothesis import strategies as st

import everypair as ep

from . import metric_oracles as oracles
from .strategies import batches
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


@given(batch=batches(groups=False))
def test_equals_scikit_learn_for_any_batch(batch):
    weights = batch.knobs["weights"]
    w = np.ones(batch.scores.size) if weights is None else weights
    assume(w[batch.positive].any())
    expected = sklearn.metrics.average_precision_score(
        batch.positive, batch.scores, sample_weight=w
    )
    got = ep.average_precision(batch.scores, batch.labels, weights=weights)
    assert_close(got, expected, np.float64)


@given(batch=batches(), average=st.sampled_from(("groups", "rows")))
def test_equals_the_double_sum(batch, average):
    knobs = {name: batch.knobs[name] for name in ("weights", "groups")}
    w = np.ones(batch.scores.size) if knobs["weights"] is None else knobs["weights"]
    assume(w[batch.positive].any())
    got = ep.average_precision(batch.scores, batch.labels, **knobs, average=average)
    expected = oracles.average_precision(batch.scores, batch.labels, **knobs, average=average)
    assert_close(got, expected, np.float64)


@given(batch=batches(weights=True))
def test_a_whole_weight_is_a_repetition(batch):
    weights = (2 * batch.knobs["weights"]).astype(int)
    groups = batch.knobs["groups"]
    assume(weights[batch.positive].any())
    rows = np.repeat(np.arange(weights.size), weights)
    got = ep.average_precision(batch.scores, batch.labels, weights=weights, groups=groups)
    repeated = None if groups is None else groups[rows]
    expected = ep.average_precision(batch.scores[rows], batch.labels[rows], groups=repeated)
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


@pytest.mark.parametrize("scale", [1e300, 1e-300, 2.0**-1074])
@pytest.mark.parametrize("average", ["groups", "rows"])
def test_the_scale_of_the_weights_does_not_matter(scale, average):
    scores, labels, weights = sample(300, ties=True)
    weights = np.ceil(4 * weights)
    groups = np.arange(300) % 7
    knobs = {"groups": groups, "average": average}
    expected = ep.average_precision(scores, labels, weights=weights, **knobs)
    got = ep.average_precision(scores, labels, weights=weights * scale, **knobs)
    assert_close(got, expected, np.float64)
    # Groups without negatives, or without positives, have no scale of their own.
    labels = np.where(groups < 2, groups == 0, labels)
    expected = ep.average_precision(scores, labels, weights=weights, **knobs)
    got = ep.average_precision(scores, labels, weights=weights * scale, **knobs)
    assert_close(got, expected, np.float64)
    if average == "groups":  # each group may have a scale of its own
        own = np.where(groups == 2, scale, 1.0)
        got = ep.average_precision(scores, labels, weights=weights * own, **knobs)
        assert_close(got, expected, np.float64)


def test_negatives_of_huge_or_tiny_weight():
    scores, labels = [3.0, 2.0, 1.0], [1, 0, 1]
    assert ep.average_precision(scores, labels, weights=[1e-200, 1e200, 1e-200]) == 0.5
    assert ep.average_precision(scores, labels, weights=[1e200, 1e-200, 1e200]) == 1.0


def test_constant_weights_do_not_drift():
    scores, labels, _ = sample(500_000, ties=False)
    expected = ep.average_precision(scores, labels)
    got = ep.average_precision(scores, labels, weights=np.full(scores.size, 0.1))
    assert got == pytest.approx(expected, rel=1e-14)


def test_without_positives():
    with pytest.raises(ValueError, match="average_precision must have a positive row; labels hold"):
        ep.average_precision([1.0, 2.0], [0, 0])
    with pytest.raises(ValueError, match="must have a positive row of positive weight"):
        ep.average_precision([1.0, 2.0], [1, 0], weights=[0, 1])
    with pytest.raises(ValueError, match="labels hold 0 positives and 0 negatives of positive"):
        ep.average_precision([1.0, 2.0], [1, 0], weights=[0, 0])


def test_wrong_average():
    with pytest.raises(ValueError, match=r"average must be one of 'groups' \(all groups count the"):
        ep.average_precision([1.0, 2.0], [1, 0], average="pairs")
