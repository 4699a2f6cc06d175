"""The laws of all metrics of arrays, against scikit-learn, pROC and their definitions."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import everypair as ep
from everypair import naive
from everypair.inputs import batches as input_batches
from everypair.kernel import choose
from everypair.metrics.tie_blocks import tie_blocks

from . import metric_oracles as oracles
from .asah import NDKA, POOR_OUTCOME, WFNS
from .strategies import batches
from .tolerances import assert_close


def both(name, oracle=oracles, **options):
    """Return a metric and its oracle, with the same options."""
    return tuple(partial(getattr(module, name), **options) for module in (ep, oracle))


AVERAGES = ("pairs", "groups", "rows")
BOXES = (
    {"max_fpr": 0.3, "min_tpr": 0.1},
    {"max_fpr": 0.01},
    {"min_tpr": 0.97},
    {"max_fpr": 0.71, "min_tpr": 0.22, "standardise": True},
    {"max_fpr": 0.2, "min_tpr": 0.6, "standardise": True},
)
METRICS = {f"auc, {average}": both("auc", naive, average=average) for average in AVERAGES}
METRICS |= {
    f"part {i}, {average}": both("partial_auc", average=average, **box)
    for average in AVERAGES
    for i, box in enumerate(BOXES)
}
METRICS |= {
    f"precision, {average}": both("average_precision", average=average)
    for average in ("groups", "rows")
}
metric_names = st.sampled_from(sorted(METRICS))
LARGEST = {"part 0": 0.3 * (1.0 - 0.1), "part 1": 0.01, "part 2": 1.0 - 0.97}


def is_defined(name, batch):
    """Return whether a batch has a pair inside a group, or, for precision, a positive."""
    weights, groups = batch.knobs["weights"], batch.knobs["groups"]
    kept = np.ones(batch.scores.size, bool) if weights is None else weights > 0
    pos, neg = kept & batch.positive, kept & ~batch.positive
    groups = np.zeros(batch.scores.size) if groups is None else groups
    is_precision = name.startswith("precision")
    return pos.any() if is_precision else np.intersect1d(groups[pos], groups[neg]).size > 0


@settings(max_examples=150)
@given(batch=batches(), name=metric_names)
def test_equals_the_definition(batch, name):
    assume(is_defined(name, batch))
    metric, oracle = METRICS[name]
    data = batch.scores, batch.labels
    knobs = {key: batch.knobs[key] for key in ("weights", "groups")}
    expected = oracle(*data, **knobs)
    for backend_name in ("auto", "numpy"):
        with choose.backend(backend_name):
            assert_close(metric(*data, **knobs), expected, np.float64, scale=0.01)


@given(batch=batches(weights=True), name=metric_names)
def test_a_whole_weight_is_a_repetition(batch, name):
    weights, groups = (2 * batch.knobs["weights"]).astype(int), batch.knobs["groups"]
    assume(is_defined(name, batch))
    rows = np.repeat(np.arange(weights.size), weights)
    metric, _ = METRICS[name]
    got = metric(batch.scores, batch.labels, weights=weights, groups=groups)
    repeated = None if groups is None else groups[rows]
    expected = metric(batch.scores[rows], batch.labels[rows], groups=repeated)
    assert_close(got, expected, np.float64, scale=0.27)


@pytest.mark.parametrize("scale", [1e300, 1e-300, 2.0**-1074])
@pytest.mark.parametrize("name", METRICS)
def test_the_scale_of_the_weights_does_not_matter(name, scale):
    metric, _ = METRICS[name]
    scores, labels, weights = sample(400, ties=True)
    weights, groups = 2 * weights + 1, np.arange(400) % 9  # whole numbers
    labels = np.where(groups < 2, groups == 0, labels)  # one group without each class
    expected = metric(scores, labels, weights=weights, groups=groups)
    got = metric(scores, labels, weights=weights * scale, groups=groups)
    assert_close(got, expected, np.float64)
    if name.endswith("groups"):  # groups, and classes within a group, may have scales of their own
        own = np.where(groups == 4, scale, 1.0)
        if not name.startswith("precision"):
            own[(groups == 3) & labels] = scale
        got = metric(scores, labels, weights=weights * own, groups=groups)
        assert_close(got, expected, np.float64)


def test_no_metric_exceeds_its_largest_value_by_rounding():
    rng = np.random.default_rng(0)
    for _ in range(100):
        n = int(rng.integers(4, 40))
        labels, groups, weights = np.arange(n) % 2, np.arange(n) // 4, rng.random(n) / 3.0
        for name, (metric, _) in METRICS.items():
            largest = LARGEST.get(name.partition(",")[0], 1.0)
            value = metric(labels, labels, weights=weights, groups=groups)
            assert largest - 1e-12 < value <= largest
        assert ep.auc(labels, labels, pairs="ordered", weights=weights) <= 1.0
        assert ep.delong_test(labels, -labels, labels, weights=weights).auc_a <= 1.0


ONE_CLASS = "must have both classes"
APART = "1 positives and 1 negatives, never together"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (partial(ep.auc, average="macro"), r"average must be one of 'pairs'.*; got 'macro'"),
        (partial(ep.partial_auc, average="macro"), "average must be one of 'pairs'"),
        (partial(ep.average_precision, average="pairs"), r"one of 'groups' \(all groups count the"),
        (partial(ep.auc, groups=["a", "b"]), APART),
        (partial(ep.auc, groups=["a", "b"], average="rows"), APART),
        (partial(ep.auc, weights=[1, 0]), "1 positives and 0 negatives of positive weight"),
        (partial(ep.roc_curve, weights=[0, 0]), f"roc_curve {ONE_CLASS}"),
        (partial(ep.roc_curve, weights=[1, 0]), f"roc_curve {ONE_CLASS}"),
        (partial(ep.partial_auc, weights=[1, 0]), f"partial_auc {ONE_CLASS}"),
        (partial(ep.average_precision, weights=[0, 1]), "a positive row of positive weight"),
        (partial(ep.average_precision, weights=[0, 0]), "hold 0 positives and 0 negatives of pos"),
        (lambda x, y: ep.average_precision(x, [0, 0]), "must have a positive row; labels hold"),
        (lambda x, y: ep.auc(x, [1, 1]), "labels hold 2 positives and 0 negatives"),
        (lambda x, y: ep.roc_curve(x, [1, 1]), f"roc_curve {ONE_CLASS}; labels hold 2"),
        *((partial(ep.partial_auc, max_fpr=rate),
           "max_fpr must be a number above 0 and at most 1; got")
          for rate in (0, -0.1, 1.5, np.nan, "1 %", None)),
        *((partial(ep.partial_auc, min_tpr=rate),
           "min_tpr must be a number at least 0 and below 1; got")
          for rate in (1, -0.1, 1.5, np.nan, "1 %", None)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend_name", ["auto", "numpy"])
def test_wrong_arguments_are_explained(backend_name, call, text):
    with choose.backend(backend_name), pytest.raises(ValueError, match=text):
        call([1.0, 2.0], [1, 0])


def sample(n, *, ties, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.random(n) < 0.3
    scores = rng.normal(size=n) + labels
    return (np.round(scores * 4) / 4 if ties else scores), labels, rng.integers(0, 3, n) / 2


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [50, 1000, 30_000])
def test_equals_scikit_learn(backend, n, ties, weighted):
    scores, labels, weights = sample(n, ties=ties)
    weights = weights if weighted else None
    area, precision = (
        metric(labels, scores, sample_weight=weights)
        for metric in (sklearn.metrics.roc_auc_score, sklearn.metrics.average_precision_score)
    )
    assert_close(backend.auc(scores, labels, weights=weights), area, np.float64)
    assert_close(ep.average_precision(scores, labels, weights=weights), precision, np.float64)
    for rate in (0.001, 0.1, 0.5, 1.0):
        got = ep.partial_auc(scores, labels, weights=weights, max_fpr=rate, standardise=True)
        part = sklearn.metrics.roc_auc_score(labels, scores, sample_weight=weights, max_fpr=rate)
        assert_close(got, part, np.float64)


@given(batch=batches(groups=False))
def test_the_roc_curve_is_that_of_scikit_learn_and_has_the_auc(batch):
    weights = batch.knobs["weights"]
    assume(is_defined("auc", batch))
    curve = ep.roc_curve(batch.scores, batch.labels, weights=weights)
    expected = sklearn.metrics.roc_curve(
        batch.positive, batch.scores, sample_weight=weights, drop_intermediate=False
    )
    for got, values in zip(curve, expected, strict=True):
        np.testing.assert_allclose(got, values, rtol=1e-12)
    assert curve.thresholds.dtype == batch.dtype
    area = (np.diff(curve.fpr) * (curve.tpr[1:] + curve.tpr[:-1]) / 2).sum()
    assert_close(area, ep.auc(batch.scores, batch.labels, weights=weights), np.float64)


@given(power=st.integers(-300, 300))
def test_auc_depends_on_the_order_only(backend, power):
    scores, labels, _ = sample(200, ties=False)
    squeezed = 1e8 + np.argsort(np.argsort(scores)) * 2.0**-20
    expected = backend.auc(scores, labels)
    assert backend.auc(scores * 2.0**power, labels) == expected
    assert backend.auc(squeezed, labels) == expected


def test_neighbouring_floats_are_not_tied(backend):
    for x in (1.0, 1e300, 5e-324, 1e-40):
        assert backend.auc([x, np.nextafter(x, np.inf)], [0, 1]) == 1.0
        assert backend.auc([x, np.nextafter(x, np.inf)], [1, 0]) == 0.0
    assert backend.auc([-0.0, 0.0], [0, 1]) == 0.5
    assert backend.auc([-1.7e308, 1.7e308], [0, 1]) == 1.0


def test_earlier_groups_cost_a_group_no_digits():
    rng = np.random.default_rng(0)
    n = 40_000
    scores, weights = rng.normal(size=n), rng.random(n)
    labels, groups = np.arange(n) % 2, np.arange(n) // 4
    last = groups == groups[-1]
    whole, alone = (
        tie_blocks(input_batches.batch_from(scores[r], labels[r], weights[r], groups[r]), "auc")
        for r in (slice(None), last)
    )
    np.testing.assert_allclose(whole.total[:, -1], alone.total[:, 0], rtol=1e-15)
    np.testing.assert_allclose(whole.above[:, -4:], alone.above, rtol=1e-15)


def test_average_precision_with_negatives_of_huge_or_tiny_weight():
    scores, labels = [3.0, 2.0, 1.0], [1, 0, 1]
    assert ep.average_precision(scores, labels, weights=[1e-200, 1e200, 1e-200]) == 0.5
    assert ep.average_precision(scores, labels, weights=[1e200, 1e-200, 1e200]) == 1.0


def test_constant_weights_do_not_drift():
    scores, labels, _ = sample(500_000, ties=False)
    expected = ep.average_precision(scores, labels)
    got = ep.average_precision(scores, labels, weights=np.full(scores.size, 0.1))
    assert got == pytest.approx(expected, rel=1e-14)


# From the tests of pROC 1.18: auc(partial.auc=c(1, .9)), with partial.auc.focus and .correct.
@pytest.mark.parametrize(
    ("scores", "knobs", "area", "standardised"),
    [
        (WFNS, {"max_fpr": 0.1}, 0.0334417344173442, 0.649693339038653),
        (NDKA, {"max_fpr": 0.1}, 0.0107046070460705, 0.530024247610897),
        (WFNS, {"min_tpr": 0.9}, 0.0400999322493225, 0.68473648552275),
    ],
)
def test_areas_published_by_proc(scores, knobs, area, standardised):
    for standardise, expected in ((False, area), (True, standardised)):
        got = ep.partial_auc(scores, POOR_OUTCOME, **knobs, standardise=standardise)
        assert got == pytest.approx(expected, rel=1e-12)
