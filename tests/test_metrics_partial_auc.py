"""Partial AUC, against scikit-learn, pROC and the sum over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import assume, given
from hypothesis import strategies as st

import everypair as ep

from . import metric_oracles as oracles
from .asah import NDKA, POOR_OUTCOME, WFNS
from .strategies import batches
from .test_metrics import is_defined
from .tolerances import assert_close

bounds = st.sampled_from((0.0, 0.01, 0.125, 0.3, 0.5, 0.75, 0.9)).map(
    lambda rate: {"max_fpr": 1.0 - rate, "min_tpr": rate}
)


# From the tests of pROC 1.18: auc(partial.auc=c(1, .9)), with partial.auc.focus and .correct.
@pytest.mark.parametrize(
    ("scores", "knobs", "expected"),
    [
        (WFNS, {"max_fpr": 0.1}, 0.0334417344173442),
        (NDKA, {"max_fpr": 0.1}, 0.0107046070460705),
        (WFNS, {"max_fpr": 0.1, "standardise": True}, 0.649693339038653),
        (NDKA, {"max_fpr": 0.1, "standardise": True}, 0.530024247610897),
        (WFNS, {"min_tpr": 0.9}, 0.0400999322493225),
        (NDKA, {"min_tpr": 0.9}, 0.0037940379403794),
        (WFNS, {"min_tpr": 0.9, "standardise": True}, 0.68473648552275),
    ],
)
def test_areas_published_by_proc(scores, knobs, expected):
    assert ep.partial_auc(scores, POOR_OUTCOME, **knobs) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("max_fpr", [0.001, 0.1, 0.5, 1.0])
def test_equals_scikit_learn(max_fpr, ties, weighted):
    rng = np.random.default_rng(0)
    labels = rng.random(5000) < 0.2
    scores = rng.normal(size=5000) + labels
    scores = np.round(scores, 1) if ties else scores
    weights = rng.random(5000) if weighted else None
    got = ep.partial_auc(scores, labels, max_fpr=max_fpr, standardise=True, weights=weights)
    expected = sklearn.metrics.roc_auc_score(labels, scores, max_fpr=max_fpr, sample_weight=weights)
    assert_close(got, expected, np.float64)


@given(
    batch=batches(),
    max_fpr=st.floats(0.01, 1.0),
    min_tpr=st.floats(0.0, 0.99),
    standardise=st.booleans(),
    average=st.sampled_from(("pairs", "groups", "rows")),
)
def test_equals_the_double_sum(batch, max_fpr, min_tpr, standardise, average):
    assume(is_defined("part", batch))
    knobs = {name: batch.knobs[name] for name in ("weights", "groups")}
    knobs |= {"max_fpr": max_fpr, "min_tpr": min_tpr, "standardise": standardise}
    got = ep.partial_auc(batch.scores, batch.labels, **knobs, average=average)
    expected = oracles.partial_auc(batch.scores, batch.labels, **knobs, average=average)
    assert_close(got, expected, np.float64, scale=max_fpr * (1.0 - min_tpr))


@given(batch=batches(), average=st.sampled_from(("pairs", "groups", "rows")))
def test_the_whole_curve_has_the_auc(batch, average):
    assume(is_defined("part", batch))
    knobs = {name: batch.knobs[name] for name in ("weights", "groups")} | {"average": average}
    expected = ep.auc(batch.scores, batch.labels, **knobs)
    for standardise in (False, True):
        got = ep.partial_auc(batch.scores, batch.labels, **knobs, standardise=standardise)
        assert_close(got, expected, np.float64, scale=0.5)


@given(batch=batches(), rates=bounds, standardise=st.booleans())
def test_swapping_the_classes_swaps_the_bounds(batch, rates, standardise):
    assume(is_defined("part", batch))
    knobs = {name: batch.knobs[name] for name in ("weights", "groups")}
    knobs["standardise"] = standardise
    of_negatives = ep.partial_auc(batch.scores, batch.labels, max_fpr=rates["max_fpr"], **knobs)
    of_positives = ep.partial_auc(-batch.scores, ~batch.positive, min_tpr=rates["min_tpr"], **knobs)
    assert_close(of_negatives, of_positives, np.float64, scale=1.0)


def test_random_and_perfect_scores_when_standardised():
    for rates in ({"max_fpr": 0.2}, {"min_tpr": 0.7}, {"max_fpr": 0.6, "min_tpr": 0.3}):
        tied = ep.partial_auc([1, 1, 1], [1, 0, 0], **rates, standardise=True)
        perfect = ep.partial_auc([3, 2, 1], [1, 0, 0], **rates, standardise=True)
        assert (tied, perfect) == pytest.approx((0.5, 1.0), rel=1e-15)


@pytest.mark.parametrize("rate", ["end", -0.1, 1.5, np.nan, "1 %", None])
def test_wrong_rates(rate):
    widest, lowest = (0, 1) if rate == "end" else (rate, rate)
    with pytest.raises(ValueError, match="max_fpr must be a number above 0 and at most 1; got"):
        ep.partial_auc([1, 2], [0, 1], max_fpr=widest)
    with pytest.raises(ValueError, match="min_tpr must be a number at least 0 and below 1; got"):
        ep.partial_auc([1, 2], [0, 1], min_tpr=lowest)
