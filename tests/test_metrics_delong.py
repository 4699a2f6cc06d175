"""DeLong's interval and test: pROC's published results, the double sum, and simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import everypair as ep
from everypair.kernel import choose

from . import metric_oracles as oracles
from .asah import NDKA, POOR_OUTCOME, S100B, WFNS
from .strategies import batches
from .tolerances import assert_close

# From the tests of pROC 1.18, ci.auc and roc.test; for S100B from its documentation.
PROC_INTERVALS = [
    (NDKA, 0.501244999271703, 0.611957994579946, 0.722670989888189, 1e-14),
    (S100B, 0.6301, 0.7314, 0.8326, 5e-5),
]
PROC_TESTS = [
    (WFNS, S100B, 2.20898359144091, 0.0271757822291882, 0.0104061769564846, 0.174214419249478),
    (WFNS, NDKA, 2.79777591868904, 0.00514557970691098, 0.0634011709339876, 0.3600405634833566),
    (NDKA, S100B, -1.39077002573558, 0.164295175223054, -0.2876917446341914, 0.0488706064228094),
]


@pytest.mark.parametrize(("scores", "low", "auc", "high", "tolerance"), PROC_INTERVALS)
def test_intervals_published_by_proc(scores, low, auc, high, tolerance):
    found = ep.delong(scores, POOR_OUTCOME)
    assert (found.low, found.auc, found.high) == pytest.approx((low, auc, high), abs=tolerance)


@pytest.mark.parametrize(("a", "b", "z", "p_value", "low", "high"), PROC_TESTS)
def test_tests_published_by_proc(a, b, z, p_value, low, high):
    found = ep.delong_test(a, b, POOR_OUTCOME)
    assert found.z == pytest.approx(z, rel=1e-13)
    assert found.p_value == pytest.approx(p_value, rel=1e-13)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-14)
    swapped = ep.delong_test(b, a, POOR_OUTCOME)
    assert (swapped.z, swapped.p_value) == (-found.z, found.p_value)


CLOSE = {"rel": 1e-11, "abs": 1e-12}
KINDS = {
    "binary": {"pairs": "binary"},
    "ordered": {"pairs": "ordered"},
    "survival": {"pairs": "survival"},
    "uno": {"pairs": "survival", "censoring": "uno"},
}


def targets_of(kind, batch):
    """Return labels of a kind of pairs, and whether the classes have two groups of rows each."""
    weights, groups = batch.knobs["weights"], batch.knobs["groups"]
    kept = np.ones(batch.scores.size, bool) if weights is None else weights > 0
    units = np.arange(batch.scores.size) if groups is None else groups
    if kind == "binary":
        classes, labels = (batch.positive, ~batch.positive), batch.labels
    else:
        times = 1.0 + np.round(4.0 * np.abs(batch.vector))
        first = times[kept].min(initial=9.0)
        has_event = (kept & (times == first) & batch.positive).any()
        classes = (np.full(kept.shape, has_event and (kept & (times > first)).any()),)
        labels = times if kind == "ordered" else (times, batch.positive)
    return labels, all(np.unique(units[kept & c]).size >= 2 for c in classes)


@settings(max_examples=200)
@given(
    batch=batches(),
    kind=st.sampled_from(sorted(KINDS)),
    method=st.sampled_from(("normal", "logit")),
    backend_name=st.sampled_from(("numpy", "auto")),
)
def test_equals_the_double_sum(batch, kind, method, backend_name):
    labels, has_a_variance = targets_of(kind, batch)
    assume(has_a_variance)
    options = {name: batch.knobs[name] for name in ("weights", "groups")} | KINDS[kind]
    other = batch.scores + batch.vector * batch.scores.std()
    with choose.backend(backend_name):
        got = ep.delong(batch.scores, labels, **options, confidence=0.9, method=method)
        test = ep.delong_test(batch.scores, other, labels, **options)
        assert_close(
            got.auc, ep.auc(batch.scores, labels, **options | {"groups": None}), np.float64
        )
    expected = oracles.delong(batch.scores, labels, **options, confidence=0.9, method=method)
    assert got == pytest.approx(expected, **CLOSE)
    assert got.low <= got.auc <= got.high
    expected = oracles.delong_test(batch.scores, other, labels, **options)
    assert test[:4] == pytest.approx(expected, **CLOSE)


def random_rows(n=2000, seed=0, ties=True):
    rng = np.random.default_rng(seed)
    labels = rng.random(n) < 0.2
    scores = rng.normal(size=n) + labels
    scores = np.round(scores, 1) if ties else scores
    return scores, labels, rng.integers(1, 5, n), rng.integers(0, 200, n)


def test_a_row_of_weight_two_is_a_cluster_of_two_equal_rows():
    scores, labels, weights, _ = random_rows()
    rows = np.repeat(np.arange(scores.size), weights)
    repeated = ep.delong(scores[rows], labels[rows], groups=rows)
    assert ep.delong(scores, labels, weights=weights) == pytest.approx(repeated, rel=1e-12)
    test = ep.delong_test(scores, -weights, labels, weights=weights)
    repeated = ep.delong_test(scores[rows], -weights[rows], labels[rows], groups=rows)
    assert test == pytest.approx(repeated, rel=1e-12)


@pytest.mark.parametrize("scale", [1e300, 1e-300, 2.0**-1074])
def test_the_scale_of_the_weights_does_not_matter(scale):
    scores, labels, weights, groups = random_rows()
    expected = ep.delong(scores, labels, weights=weights, groups=groups)
    for scales in (scale, np.where(labels, scale, 1.0)):
        got = ep.delong(scores, labels, weights=weights * scales, groups=groups)
        assert got == pytest.approx(expected, rel=1e-12)


def test_the_variance_is_exact_for_an_auc_near_one():
    n = 100_000
    scores, labels = np.arange(n), np.arange(n) >= n // 2
    scores[[n // 2 - 1, n // 2]] = scores[[n // 2, n // 2 - 1]]  # one pair in the wrong order
    half = n // 2
    # One placement in each class is 1 - 1 / half, all others are 1.
    expected = 2 * (half - 1) / half**3 / (half * (half - 1))
    assert ep.delong(scores, labels).variance == pytest.approx(expected, rel=1e-13)


def test_equal_scorers():
    scores, labels, weights, groups = random_rows()
    for knobs in ({}, {"weights": weights / 7}, {"groups": groups}):
        for same in (3 * scores - 1, np.unique(scores, return_inverse=True)[1].astype(np.float32)):
            test = ep.delong_test(scores, same, labels, **knobs)
            assert (test.difference, test.variance, test.z, test.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_perfect_scorers():
    scores, labels = np.arange(6.0), [0, 0, 0, 1, 1, 1]
    for method in ("normal", "logit"):
        assert ep.delong(scores, labels, method=method) == (1.0, 0.0, 1.0, 1.0)
        assert ep.delong(-scores, labels, method=method) == (0.0, 0.0, 0.0, 0.0)
    test = ep.delong_test(scores, -scores, labels)
    assert (test.difference, test.z, test.p_value) == (1.0, math.inf, 0.0)


def test_the_logit_interval_stays_inside():
    wide = ep.delong([1, 1, 2, 2], [0, 1, 0, 1], method="logit", confidence=1 - 1e-15)
    assert 0.0 <= wide.low < 0.5 < wide.high <= 1.0


@pytest.mark.parametrize("kind", ["rows", "clusters", "survival"])
def test_the_variance_is_that_of_repeated_samples(kind):
    # The eight rows of a cluster share most of their noise, and most of them are of one class.
    rng = np.random.default_rng(0)
    groups, found, ignoring = np.repeat(np.arange(40), 8), [], []
    options = {"pairs": "survival"} if kind == "survival" else {"groups": groups}
    for _ in range(400):
        if kind == "survival":
            y = rng.normal(size=200)
            times, censored = rng.exponential(np.exp(-y)), rng.exponential(2.0, 200)
            data = y + rng.normal(size=200), (np.minimum(times, censored), times <= censored)
        else:
            labels = rng.random(groups.size) < np.where(groups % 2, 0.8, 0.2)
            shared = 1.5 * rng.normal(size=40)[groups] if kind == "clusters" else 0.0
            data = rng.normal(size=groups.size) + labels + shared, labels
            ignoring.append(ep.delong(*data).variance)
        found.append(ep.delong(*data, **options))
    areas, variances, low, high = np.array(found).T
    assert variances.mean() == pytest.approx(np.var(areas), rel=0.15)
    assert 0.91 < ((low < areas.mean()) & (areas.mean() < high)).mean() < 0.98
    if ignoring:
        assert (np.mean(ignoring) < 0.5 * np.var(areas)) == (kind == "clusters")


@pytest.mark.parametrize(
    ("call", "arguments", "options", "text"),
    [
        (ep.delong, ([1.0, 2.0], [1, 1]), {}, "delong must have both classes; labels hold 2 pos"),
        (ep.delong, ([1.0, 2.0, 3.0], [1, 0, 0]), {},
         r"two rows of each class.*got 1 with positives and 2 with"),
        (ep.delong, ([1.0, 2.0, 3.0, 4.0], [1, 1, 0, 0]), {"groups": ["a", "a", "a", "b"]},
         r"two groups of each class.*got 1 with positives and 2"),
        (ep.delong, ([1.0, 2.0], [1, 1]), KINDS["ordered"], "delong must have at least one pair"),
        (ep.delong, ([1.0, 2.0], [1, 2]), {**KINDS["ordered"], "groups": ["a", "a"]},
         r"delong must have at least two groups, to .*; got 1"),
        (ep.delong_test, ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1, 0, 1]), {"weights": [1, 2, 3]},
         "delong_test must have at least two rows"),
        (ep.delong, ([1, 2, 3, 4], [0, 1, 0, 1]), {"method": "bootstrap"},
         "method must be 'normal' or 'logit'; got 'bootstrap'"),
        (ep.delong_test, ([1, 2, 3, 4], [1, np.nan, 3, 4], [0, 1, 0, 1]), {},
         r"^scores_b must be finite; got nan \(first at index 1"),
        (ep.delong_test, ([1, 2, 3, 4], [1, 2, 3], [0, 1, 0, 1]), {},
         "labels must have one entry per score; got 4 for 3"),
        *((ep.delong, ([1, 2, 3, 4], [0, 1, 0, 1]), {"confidence": confidence},
           "confidence must be a number above 0 and below 1; got")
          for confidence in (0, 1, 95, -0.5, math.nan, "95%", None)),
    ],
)  # fmt: skip
def test_wrong_arguments_are_explained(call, arguments, options, text):
    with pytest.raises(ValueError, match=text):
        call(*arguments, **options)
