"""The laws of all metrics of arrays, and AUC and ROC curves against scikit-learn."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import assume, given
from hypothesis import strategies as st

import everypair as ep
from everypair import naive
from everypair.inputs import batches as input_batches
from everypair.kernel import choose
from everypair.metrics.tie_blocks import tie_blocks

from . import metric_oracles as oracles
from .strategies import batches
from .tolerances import assert_close


def both(name, oracle=oracles, **options):
    """Return a metric and its oracle, with the same options."""
    return tuple(partial(getattr(module, name), **options) for module in (ep, oracle))


AVERAGES = ("pairs", "groups", "rows")
BOX = {"max_fpr": 0.3, "min_tpr": 0.1}
METRICS = {f"auc, {average}": both("auc", naive, average=average) for average in AVERAGES}
METRICS |= {f"part, {average}": both("partial_auc", average=average, **BOX) for average in AVERAGES}
METRICS |= {
    f"precision, {average}": both("average_precision", average=average)
    for average in ("groups", "rows")
}
metric_names = st.sampled_from(sorted(METRICS))
LARGEST = {"auc": 1.0, "part": 0.3 * (1.0 - 0.1), "precision": 1.0}


def is_defined(name, batch):
    """Return whether a batch has a pair inside a group, or, for precision, a positive."""
    weights, groups = batch.knobs["weights"], batch.knobs["groups"]
    kept = np.ones(batch.scores.size, bool) if weights is None else weights > 0
    pos, neg = kept & batch.positive, kept & ~batch.positive
    groups = np.zeros(batch.scores.size) if groups is None else groups
    is_precision = name.startswith("precision")
    return pos.any() if is_precision else np.intersect1d(groups[pos], groups[neg]).size > 0


@given(batch=batches(), name=metric_names)
def test_equals_the_definition(batch, name):
    assume(is_defined(name, batch))
    metric, oracle = METRICS[name]
    data = batch.scores, batch.labels
    knobs = {key: batch.knobs[key] for key in ("weights", "groups")}
    expected = oracle(*data, **knobs)
    for backend_name in ("auto", "numpy"):
        with choose.backend(backend_name):
            assert_close(metric(*data, **knobs), expected, np.float64, scale=0.27)


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
        own = (
            own
            if name.startswith("precision")
            else own * np.where((groups == 3) & labels, scale, 1.0)
        )
        got = metric(scores, labels, weights=weights * own, groups=groups)
        assert_close(got, expected, np.float64)


@pytest.mark.parametrize("name", METRICS)
def test_no_metric_exceeds_its_largest_value_by_rounding(name):
    rng, (metric, _) = np.random.default_rng(0), METRICS[name]
    for _ in range(100):
        n = int(rng.integers(4, 40))
        labels, groups = np.arange(n) % 2, np.arange(n) // 4
        value = metric(labels, labels, weights=rng.random(n) / 3.0, groups=groups)
        largest = LARGEST[name.partition(",")[0]]
        assert largest - 1e-12 < value <= largest


def test_no_interval_exceeds_one_by_rounding():
    rng = np.random.default_rng(0)
    for _ in range(300):
        n = int(rng.integers(4, 40))
        labels, weights = np.arange(n) % 2, rng.random(n) / 3.0
        assert ep.auc(labels, labels, pairs="ordered", weights=weights) <= 1.0
        assert ep.partial_auc(labels, labels, max_fpr=0.3, standardise=True, weights=weights) <= 1.0
        assert ep.delong_test(labels, -labels, labels, weights=weights).auc_a <= 1.0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (partial(ep.auc, average="macro"), r"average must be one of 'pairs'.*; got 'macro'"),
        (partial(ep.partial_auc, average="macro"), "average must be one of 'pairs'"),
        (
            partial(ep.average_precision, average="pairs"),
            r"average must be one of 'groups' \(all groups count the",
        ),
        (partial(ep.auc, groups=["a", "b"]), "1 positives and 1 negatives, never together"),
        (
            partial(ep.auc, groups=["a", "b"], average="rows"),
            "1 positives and 1 negatives, never together",
        ),
        (partial(ep.roc_curve, weights=[0, 0]), "roc_curve must have both classes"),
        (partial(ep.roc_curve, weights=[1, 0]), "roc_curve must have both classes"),
        (
            partial(ep.partial_auc, weights=[1, 0]),
            "partial_auc must have both classes",
        ),
        (partial(ep.average_precision, weights=[0, 1]), "a positive row of positive weight"),
        (partial(ep.average_precision, weights=[0, 0]), "hold 0 positives and 0 negatives of pos"),
        (lambda x, y: ep.average_precision(x, [0, 0]), "must have a positive row; labels hold"),
        (lambda x, y: ep.roc_curve(x, [1, 1]), "roc_curve must have both classes; labels hold 2"),
    ],
)
def test_wrong_arguments_are_explained(call, text):
    with pytest.raises(ValueError, match=text):
        call([1.0, 2.0], [1, 0])


def sample(n, *, ties, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.random(n) < 0.3
    scores = rng.normal(size=n) + labels
    return (np.round(scores * 4) / 4 if ties else scores), labels, rng.integers(0, 3, n) / 2


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [50, 1000, 30_000])
def test_auc_and_roc_curve_equal_those_of_scikit_learn(backend, n, ties, weighted):
    scores, labels, weights = sample(n, ties=ties)
    weights = weights if weighted else None
    expected = sklearn.metrics.roc_auc_score(labels, scores, sample_weight=weights)
    assert_close(backend.auc(scores, labels, weights=weights), expected, np.float64)
    expected = sklearn.metrics.roc_curve(
        labels, scores, sample_weight=weights, drop_intermediate=False
    )
    for got, want in zip(ep.roc_curve(scores, labels, weights=weights), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


@given(batch=batches(groups=False))
def test_roc_curve_of_any_batch(batch):
    weights = batch.knobs["weights"]
    assume(is_defined("auc", batch))
    curve = ep.roc_curve(batch.scores, batch.labels, weights=weights)
    expected = sklearn.metrics.roc_curve(
        batch.positive, batch.scores, sample_weight=weights, drop_intermediate=False
    )
    for got, want in zip(curve, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
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


def test_auc_of_one_class_raises_and_reports_counts(backend):
    with pytest.raises(ValueError, match="labels hold 3 positives and 0 negatives"):
        backend.auc([1.0, 2.0, 3.0], [1, 1, 1])
    with pytest.raises(ValueError, match="0 positives and 2 negatives of positive weight"):
        backend.auc([1.0, 2.0, 3.0], [1, 0, 0], weights=[0, 1, 1])


def test_thresholds_have_the_dtype_of_the_scores():
    for dtype in (np.float16, np.float32, np.float64):
        curve = ep.roc_curve(np.array([1, 2], dtype), [0, 1])
        assert curve.thresholds.dtype == dtype
    assert ep.roc_curve([1, 2], [0, 1]).thresholds.tolist() == [np.inf, 2.0, 1.0]


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
