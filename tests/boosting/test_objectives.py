"""Gradients and Hessians of the objectives, against the double sum and the logistic loss."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import everypair as ep
from everypair import naive
from everypair.boosting import (
    SOFT_HINGE,
    catboost_objective,
    lightgbm_metric,
    lightgbm_objective,
    xgboost_metric,
    xgboost_objective,
)

WITH_CURVATURE = [SOFT_HINGE, "squared_hinge", "square", ("huber_hinge", 0.5), ("logistic", 0.0)]
OBJECTIVES = {"lightgbm": lightgbm_objective, "xgboost": xgboost_objective}


def knobs(given):
    surrogate, margin = given if isinstance(given, tuple) else (given, 1.0)
    return {"surrogate": surrogate, "margin": margin}


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    labels = (rng.random(60) < 0.2).astype(np.float64)
    scores = 2.0 * rng.normal(size=60) + labels
    return scores, labels, rng.uniform(0.5, 2.0, 60)


WHICH = [{}, {"pairs": "ordered"}, {"pairs": "survival"}]


@pytest.mark.parametrize("given", WITH_CURVATURE, ids=str)
@pytest.mark.parametrize("which", WHICH, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_derivatives_equal_the_double_sum(rows, given, which, weighted):
    scores, labels, weights = rows
    w = weights if weighted else None
    if "pairs" in which:
        labels = np.random.default_rng(1).normal(size=60).round(1)
    objective = lightgbm_objective(**knobs(given), **which)
    _, *exact = naive.pair_derivatives(
        scores, labels, weights=w, reduction="sum", surrogate=objective.surrogate,
        margin=objective.scaled_margin, **which,
    )  # fmt: skip
    of_pairs = [
        make(**knobs(given), **which, hessian="pairs")(labels, scores, w)
        for make in OBJECTIVES.values()
    ]
    for derivatives in (*of_pairs, objective(labels, scores, w)[:1]):
        for got, wanted in zip(derivatives, exact, strict=False):
            wanted = wanted / (w.sum() if weighted else 60.0)
            # Boosters keep float32.
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())


def test_a_partial_objective_moves_only_the_hardest_negatives(rows):
    scores, labels, _ = rows
    grad, hess = xgboost_objective(max_fpr=0.1)(labels, scores)
    negative = labels == 0
    kept = np.sort(scores[negative])[-int(np.ceil(0.1 * negative.sum()))]
    assert not grad[negative & (scores < kept)].any()
    assert (hess[negative & (scores > kept)] > 0.0).all()


def test_one_class_and_no_weight_give_zero_derivatives():
    for arguments in ((np.ones(5), np.arange(5.0)), (np.ones(3), np.ones(3), np.zeros(3))):
        assert not np.any(lightgbm_objective()(*arguments))


@pytest.mark.parametrize("given", WITH_CURVATURE, ids=str)
def test_at_equal_scores_derivatives_equal_those_of_the_logistic_loss_with_intercept(given):
    labels, p = np.array([1.0, 0.0, 0.0, 0.0, 0.0]), 0.2
    grad, hess = lightgbm_objective(**knobs(given))(labels, np.full(5, 3.0))
    np.testing.assert_allclose(grad, p - labels, rtol=1e-6)
    np.testing.assert_allclose(hess, p * (1 - p), rtol=1e-6)
    same, of_pairs = xgboost_objective(**knobs(given))(labels, np.full(5, 3.0))
    np.testing.assert_allclose(same, grad, rtol=1e-6)
    np.testing.assert_allclose(of_pairs, np.where(labels, 1 - p, p) / 2)
    assert of_pairs.sum() == pytest.approx(hess.sum())


def logistic_hessian(scores, labels, weights):
    """Find the intercept by bisection, in double precision."""
    low, high = -100.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        p = 1 / (1 + np.exp(-(scores + middle)))
        low, high = (low, middle) if weights @ (p - labels) > 0 else (middle, high)
    return weights * p * (1 - p)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("n", "share", "spread"), [(300, 0.1, 1), (300, 0.5, 30), (100_000, 1e-3, 4)]
)
def test_the_logistic_hessian_has_the_best_intercept(n, share, spread, weighted):
    rng = np.random.default_rng(3)
    labels = (rng.random(n) < share).astype(float)
    scores = spread * rng.normal(size=n) + 2 * labels + 1000.0
    weights = rng.random(n) if weighted else np.ones(n)
    _, hess = lightgbm_objective()(labels, scores, weights if weighted else None)
    expected = logistic_hessian(scores - 1000.0, labels, weights)
    np.testing.assert_allclose(hess, expected, atol=1e-2 * expected.max())


def test_each_group_has_an_intercept_and_counts_by_its_pairs():
    rng = np.random.default_rng(4)
    sizes = np.array([40, 60, 20, 5])
    group = np.repeat(np.arange(4), sizes)
    labels = (rng.random(125) < np.array([0.1, 0.5, 0.3, 0.0])[group]).astype(float)
    scores = rng.normal(size=125) + 7.0 * group
    grad, hess = lightgbm_objective()(labels, scores, None, sizes)
    n_pos = np.bincount(group, labels)
    pairs = n_pos * (sizes - n_pos)
    mean_pair = labels.sum() * (1 - labels).sum() / (125 * pairs.sum())
    for g in range(3):
        rows = group == g
        expected = logistic_hessian(scores[rows], labels[rows], np.ones(rows.sum()))
        np.testing.assert_allclose(hess[rows], expected * sizes[g] * mean_pair, rtol=2e-2)
    assert not hess[group == 3].any()
    # With equal scores each group starts as the logistic loss does, times the same factor.
    grad, hess = lightgbm_objective()(labels, np.zeros(125), None, sizes)
    p = (n_pos / sizes)[group]
    factor = (sizes * mean_pair)[group] * (p > 0)
    np.testing.assert_allclose(grad, (p - labels) * factor, atol=1e-6)
    np.testing.assert_allclose(hess, p * (1 - p) * factor, rtol=1e-5)


def test_the_soft_hinge_is_smooth_convex_and_half_way_at_its_margin():
    t = np.linspace(-1.0, 3.0, 401)
    assert SOFT_HINGE.slope(1.0) == pytest.approx(0.5)
    assert SOFT_HINGE.slope(3.0) == pytest.approx(1.0)
    assert SOFT_HINGE.value(0.0) == 0.0
    assert (np.diff(SOFT_HINGE.slope(t)) > -1e-12).all()
    assert np.abs(np.diff(SOFT_HINGE.slope(t))).max() < 0.02


AREAS = [
    {"pairs": "ordered"},
    {"pairs": "survival", "censoring": "uno"},
    {"pairs": "binary"},
    {"max_fpr": 0.2},
    {"min_tpr": 0.5},
]


@pytest.mark.parametrize("which", AREAS, ids=str)
def test_metrics_are_exact_and_report_their_direction(rows, which):
    scores, labels, weights = rows
    if which.get("pairs", "binary") != "binary":
        labels = np.random.default_rng(1).normal(size=60).round(1)
    if "pairs" in which:
        expected = ep.auc(scores, labels, weights=weights, **which)
    else:
        expected = ep.partial_auc(scores, labels, weights=weights, standardise=True, **which)
    assert lightgbm_metric(**which)(labels, scores, weights) == ("auc_pairs", expected, True)
    assert xgboost_metric(**which)(labels, scores, weights) == expected
    # Squared hinge: a lead of 2 in scores is asked for, and a pair at equal scores costs 1.
    metric = lightgbm_metric("loss", surrogate="squared_hinge", **which)
    name, loss, higher_is_better = metric(labels, scores)
    assert (name, higher_is_better) == ("loss_pairs", False)
    assert loss == pytest.approx(naive.pair_loss(scores / 2.0, labels, **which))
    assert xgboost_metric("loss", surrogate="squared_hinge", **which)(labels, scores) == loss


def test_a_metric_is_averaged_over_groups(rows):
    scores, _, target = rows
    options = {"pairs": "ordered", "average": "groups"}
    expected = ep.auc(scores, target, groups=np.arange(60) // 20, **options)
    assert lightgbm_metric(**options)(target, scores, None, [20] * 3)[1] == expected


def test_repr_shows_the_settings():
    default = "lightgbm_objective(surrogate='soft_hinge', margin=1.0, hessian='logistic')"
    assert repr(lightgbm_objective()) == default
    assert repr(eval(default)) == default
    wanted = "objective(surrogate='squared_hinge', margin=2.0, hessian='pairs', max_fpr=0.1)"
    knobs = {"surrogate": "squared_hinge", "margin": 2.0, "hessian": "pairs", "max_fpr": 0.1}
    assert repr(xgboost_objective(**knobs)) == f"xgboost_{wanted}"
    assert repr(catboost_objective([0, 1], **knobs)) == f"catboost_{wanted}"


@pytest.mark.parametrize("make", [*OBJECTIVES.values(), lightgbm_metric, xgboost_metric])
def test_objectives_and_metrics_pickle(rows, make):
    scores, labels, _ = rows
    function = make(max_fpr=0.5)
    again = pickle.loads(pickle.dumps(function))
    assert str(again(labels, scores)) == str(function(labels, scores))


ROWS = np.zeros(3)
CURVATURE = "surrogate must have a slope and a curvature above 0"
CALLS = [
    (lambda: lightgbm_objective(margin=-1.0), "margin must be"),
    (lambda: xgboost_objective(surrogate="squared-hinge"), "Did you mean 'squared_hinge'"),
    (lambda: lightgbm_objective(hessian="exact"), "the exact one; got 'exact'"),
    (lambda: lightgbm_objective(pairs="ordered", hessian="logistic"), "hessian must be 'pairs'"),
    (lambda: lightgbm_objective(pairs="ordered", max_fpr=0.1), "must be left out if pairs is"),
    (lambda: lightgbm_objective(surrogate="linear_hinge"), CURVATURE),
    (lambda: xgboost_objective(surrogate="linear_hinge"), CURVATURE),
    (lambda: catboost_objective([0, 1], surrogate="linear_hinge"), CURVATURE),
    (
        lambda: lightgbm_objective(surrogate="squared_hinge", margin=0.0),
        r"margin=0 has slope 0 and curvature 0 there\. The",
    ),
    (lambda: lightgbm_metric("f1"), "metric must be 'auc' or 'loss'; got 'f1'"),
    (lambda: lightgbm_metric(average="query"), "average must be"),
    (lambda: lightgbm_metric(max_fpr=0.0), "max_fpr must be a number above 0"),
    (lambda: catboost_objective(["fraud", "fine"]), "labels must"),
    (lambda: catboost_objective([0, 1], weights=[1.0, 1.0, 1.0]), "weights must have"),
    (lambda: lightgbm_objective()(ROWS[:2], np.zeros((2, 3))), r"two classes; .* shape \(2, 3\)"),
    (lambda: lightgbm_objective()(ROWS, ROWS, None, [1, 1]), "sizes that add up to the 3 rows"),
]


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_invalid_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()
