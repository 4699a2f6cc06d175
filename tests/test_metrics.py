"""AUC and ROC curves, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import assume, given
from hypothesis import strategies as st

import everypair as ep
from everypair import naive
from everypair.inputs import batches as input_batches
from everypair.metrics.tie_blocks import tie_blocks

from .strategies import batches
from .tolerances import assert_close


def sample(n, *, ties, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.random(n) < 0.3
    scores = rng.normal(size=n) + labels
    return (np.round(scores * 4) / 4 if ties else scores), labels, rng.integers(0, 3, n) / 2


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [50, 1000, 30_000])
def test_auc_equals_scikit_learn(backend, n, ties, weighted):
    scores, labels, weights = sample(n, ties=ties)
    weights = weights if weighted else None
    expected = sklearn.metrics.roc_auc_score(labels, scores, sample_weight=weights)
    assert_close(backend.auc(scores, labels, weights=weights), expected, np.float64)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ties", [False, True])
def test_roc_curve_equals_scikit_learn(ties, weighted):
    scores, labels, weights = sample(1000, ties=ties)
    weights = weights if weighted else None
    expected = sklearn.metrics.roc_curve(
        labels, scores, sample_weight=weights, drop_intermediate=False
    )
    for got, want in zip(ep.roc_curve(scores, labels, weights=weights), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


@given(batch=batches(groups=False))
def test_roc_curve_of_any_batch(batch):
    weights = batch.knobs["weights"]
    w = np.ones(batch.scores.size) if weights is None else weights
    assume(w[batch.positive].any() and w[~batch.positive].any())
    curve = ep.roc_curve(batch.scores, batch.labels, weights=weights)
    expected = sklearn.metrics.roc_curve(
        batch.positive, batch.scores, sample_weight=weights, drop_intermediate=False
    )
    for got, want in zip(curve, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    assert curve.thresholds.dtype == batch.dtype
    area = (np.diff(curve.fpr) * (curve.tpr[1:] + curve.tpr[:-1]) / 2).sum()
    assert_close(area, ep.auc(batch.scores, batch.labels, weights=w), np.float64)


@given(batch=batches(groups=True))
def test_auc_of_groups_is_the_mean_weighted_by_pairs(backend, batch):
    weights, groups = batch.knobs["weights"], batch.knobs["groups"]
    w = np.ones(batch.scores.size) if weights is None else weights
    parts = []
    for group in np.unique(groups):
        rows = groups == group
        pair_weight = w[rows & batch.positive].sum() * w[rows & ~batch.positive].sum()
        if pair_weight:
            part = backend.auc(batch.scores[rows], batch.labels[rows], weights=w[rows])
            parts.append((part, pair_weight))
    assume(parts)
    areas, pair_weights = np.transpose(parts)
    expected = np.average(areas, weights=pair_weights)
    got = backend.auc(batch.scores, batch.labels, weights=weights, groups=groups)
    assert_close(got, expected, np.float64)


@given(batch=batches(groups=True), average=st.sampled_from(("pairs", "groups", "rows")))
def test_averages_over_groups(backend, batch, average):
    weights, groups = batch.knobs["weights"], batch.knobs["groups"]
    w = np.ones(batch.scores.size) if weights is None else weights
    areas, shares = [], []
    for group in np.unique(groups):
        rows = (groups == group) & (w > 0)
        if len(np.unique(batch.positive[rows])) == 2:
            y, x, of_rows = batch.positive[rows], batch.scores[rows], w[rows]
            areas.append(sklearn.metrics.roc_auc_score(y, x, sample_weight=of_rows))
            pairs = of_rows[y].sum() * of_rows[~y].sum()
            shares.append({"pairs": pairs, "groups": 1.0, "rows": of_rows.sum()}[average])
    assume(areas)
    expected = np.average(areas, weights=shares)
    knobs = {"weights": weights, "groups": groups, "average": average}
    assert_close(backend.auc(batch.scores, batch.labels, **knobs), expected, np.float64)
    assert_close(naive.auc(batch.scores, batch.labels, **knobs), expected, np.float64)


@given(batch=batches(groups=False), average=st.sampled_from(("groups", "rows")))
def test_without_groups_all_averages_are_equal(backend, batch, average):
    weights = batch.knobs["weights"]
    w = np.ones(batch.scores.size) if weights is None else weights
    assume(w[batch.positive].any() and w[~batch.positive].any())
    got = backend.auc(batch.scores, batch.labels, weights=weights, average=average)
    assert_close(got, backend.auc(batch.scores, batch.labels, weights=weights), np.float64)


@pytest.mark.parametrize("scale", [1e300, 1e-300, 2.0**-1074])
def test_averages_over_groups_with_weights_of_any_scale(scale):
    scores, labels, weights = sample(400, ties=True)
    weights, groups = 2 * weights + 1, np.arange(400) % 9  # whole numbers
    for average in ("groups", "rows"):
        knobs = {"groups": groups, "average": average}
        expected = ep.auc(scores, labels, weights=weights, **knobs)
        got = ep.auc(scores, labels, weights=weights * scale, **knobs)
        assert_close(got, expected, np.float64)
    # Groups, and classes within a group, may have scales of their own.
    own = np.where((groups == 3) & labels, scale, 1.0) * np.where(groups == 4, scale, 1.0)
    expected = ep.auc(scores, labels, weights=weights, groups=groups, average="groups")
    got = ep.auc(scores, labels, weights=weights * own, groups=groups, average="groups")
    assert_close(got, expected, np.float64)


def test_many_small_groups():
    rng = np.random.default_rng(3)
    n = 100_000
    groups, labels = rng.integers(0, n // 10, n), rng.random(n) < 0.3
    scores = np.round(rng.normal(size=n) + labels, 1)
    order = np.argsort(groups, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    parts = [rows for rows in parts if 0 < labels[rows].sum() < rows.size][:1000]
    kept = np.concatenate(parts)
    expected = np.mean([ep.auc(scores[rows], labels[rows]) for rows in parts])
    got = ep.auc(scores[kept], labels[kept], groups=groups[kept], average="groups")
    assert_close(got, expected, np.float64)


def test_wrong_average():
    with pytest.raises(ValueError, match=r"average must be one of 'pairs'.*; got 'macro'"):
        ep.auc([1.0, 2.0], [1, 0], average="macro")


@pytest.mark.parametrize("average", ["groups", "rows"])
def test_averages_without_a_pair_raise(average):
    with pytest.raises(ValueError, match="1 positives and 1 negatives, never together"):
        ep.auc([1.0, 2.0], [1, 0], groups=["a", "b"], average=average)


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
    with pytest.raises(ValueError, match="1 positives and 1 negatives, never together"):
        backend.auc([1.0, 2.0], [1, 0], groups=["a", "b"])


@pytest.mark.parametrize("weights", [None, [1, 1, 0], [0, 0, 0]])
def test_roc_curve_of_one_class_raises(weights):
    with pytest.raises(ValueError, match="roc_curve must have both classes; labels hold"):
        ep.roc_curve([1.0, 2.0, 3.0], [1, 1, 0] if weights else [1, 1, 1], weights=weights)


def test_thresholds_have_the_dtype_of_the_scores():
    for dtype in (np.float16, np.float32, np.float64):
        curve = ep.roc_curve(np.array([1, 2], dtype), [0, 1])
        assert curve.thresholds.dtype == dtype
    assert ep.roc_curve([1, 2], [0, 1]).thresholds.tolist() == [np.inf, 2.0, 1.0]


@pytest.mark.parametrize("average", ["pairs", "groups", "rows"])
def test_no_auc_exceeds_its_largest_value_by_rounding(average):
    rng = np.random.default_rng(0)
    for _ in range(300):
        n = int(rng.integers(4, 40))
        labels = np.arange(n) % 2
        knobs = {"weights": rng.random(n) / 3.0, "groups": np.arange(n) // 4, "average": average}
        assert 1.0 - 1e-12 < ep.auc(labels, labels, **knobs) <= 1.0
        assert 1.0 - 1e-12 < ep.auc(labels, labels, pairs="ordered", **knobs) <= 1.0
        part = ep.partial_auc(labels, labels, max_fpr=0.3, min_tpr=0.1, **knobs)
        assert part <= 0.3 * (1.0 - 0.1)
        assert ep.partial_auc(labels, labels, max_fpr=0.3, standardise=True, **knobs) <= 1.0
        weights = knobs["weights"]
        assert ep.average_precision(labels, labels, weights=weights) <= 1.0
        assert ep.delong_test(labels, -labels, labels, weights=weights).auc_a <= 1.0


def test_earlier_groups_cost_a_group_no_digits():
    rng = np.random.default_rng(0)
    n = 40_000
    scores, weights, labels, groups = (
        rng.normal(size=n),
        rng.random(n),
        np.arange(n) % 2,
        np.arange(n) // 4,
    )
    last = groups == groups[-1]
    all_batches = [
        input_batches.batch_from(
            scores[rows], labels[rows], weights[rows], groups[rows], "binary", "harrell"
        )
        for rows in (slice(None), last)
    ]
    whole, alone = (tie_blocks(batch, "auc") for batch in all_batches)
    np.testing.assert_allclose(whole.total[:, -1], alone.total[:, 0], rtol=1e-15)
    np.testing.assert_allclose(whole.above[:, -4:], alone.above, rtol=1e-15)
