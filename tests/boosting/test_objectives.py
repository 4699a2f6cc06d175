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


@pytest.mark.parametrize("given", WITH_CURVATURE, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_derivatives_equal_the_double_sum(rows, given, weighted):
    scores, labels, weights = rows
    weights = weights if weighted else None
    loss = lightgbm_objective(**knobs(given))
    _, exact_grad, exact_hess = naive.pair_derivatives(
        scores, labels, weights=weights, surrogate=loss.surrogate, margin=loss.scaled_margin
    )
    w = np.ones(60) if weights is None else weights
    n_pos, n = w[labels > 0].sum(), w.sum()
    mean_rows = n_pos * (n - n_pos) / n
    grad, hess = lightgbm_objective(**knobs(given), hessian="pairs")(labels, scores, weights)
    same, _ = lightgbm_objective(**knobs(given))(labels, scores, weights)
    # Boosters keep float32.
    for got, wanted in ((grad, exact_grad), (same, exact_grad), (hess, exact_hess)):
        wanted = wanted * mean_rows
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("given", WITH_CURVATURE, ids=str)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_at_equal_scores_derivatives_equal_those_of_the_logistic_loss_with_intercept(
    objective, given
):
    labels = np.array([1.0, 0.0, 0.0, 0.0, 0.0])
    make, p = OBJECTIVES[objective], 0.2
    grad, hess = make(**knobs(given), hessian="logistic")(labels, np.full(5, 3.0))
    np.testing.assert_allclose(grad, p - labels, rtol=1e-6)
    np.testing.assert_allclose(hess, p * (1 - p), rtol=1e-6)
    same, of_pairs = make(**knobs(given), hessian="pairs")(labels, np.full(5, 3.0))
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


def test_a_weight_is_a_repetition(rows):
    scores, labels, _ = rows
    counts = np.arange(60) % 3
    weighted = lightgbm_objective()(labels, scores, counts)
    repeated = lightgbm_objective()(np.repeat(labels, counts), np.repeat(scores, counts))
    for of_rows, of_copies in zip(weighted, repeated, strict=True):
        expected = np.bincount(np.repeat(np.arange(60), counts), of_copies, minlength=60)
        np.testing.assert_allclose(of_rows, expected, rtol=1e-2, atol=1e-6)


def test_the_soft_hinge_is_smooth_convex_and_half_way_at_its_margin():
    t = np.linspace(-1.0, 3.0, 401)
    assert SOFT_HINGE.slope(1.0) == pytest.approx(0.5)
    assert SOFT_HINGE.slope(3.0) == pytest.approx(1.0)
    assert SOFT_HINGE.value(0.0) == 0.0
    assert (np.diff(SOFT_HINGE.slope(t)) > -1e-12).all()
    assert np.abs(np.diff(SOFT_HINGE.slope(t))).max() < 0.02


def test_one_class_gives_zero_derivatives():
    grad, hess = lightgbm_objective()(np.ones(5), np.arange(5.0))
    assert not grad.any()
    assert not hess.any()
    assert not any(part.any() for part in lightgbm_objective()(np.ones(3), np.ones(3), np.zeros(3)))


def test_metrics_are_exact_and_report_their_direction(rows):
    scores, labels, weights = rows
    assert lightgbm_metric()(labels, scores, weights) == (
        "auc_pairs",
        ep.auc(scores, labels, weights=weights),
        True,
    )
    name, loss, higher_is_better = lightgbm_metric("loss", surrogate="squared_hinge")(
        labels, scores
    )
    assert (name, higher_is_better) == ("loss_pairs", False)
    # Squared hinge: a lead of 2 in scores is asked for, and a pair at equal scores costs 1.
    assert loss == pytest.approx(naive.pair_loss(scores / 2.0, labels))
    assert xgboost_metric("loss", surrogate="squared_hinge")(labels, scores) == loss


@pytest.mark.parametrize("make", [*OBJECTIVES.values(), lightgbm_metric, xgboost_metric])
def test_objectives_and_metrics_pickle(rows, make):
    scores, labels, _ = rows
    again = pickle.loads(pickle.dumps(make()))
    assert str(again(labels, scores)) == str(make()(labels, scores))


def catboost_of_two(**knobs):
    return catboost_objective([0, 1], **knobs)


@pytest.mark.parametrize("make", [*OBJECTIVES.values(), catboost_of_two])
def test_a_surrogate_without_curvature_raises(make):
    with pytest.raises(ValueError, match="surrogate must have a slope and a curvature above 0"):
        make(surrogate="linear_hinge")
    with pytest.raises(ValueError, match=r"margin=0 has slope 0 and curvature 0 there\. The"):
        make(surrogate="squared_hinge", margin=0.0)


def test_repr_shows_the_settings():
    default = "lightgbm_objective(surrogate='soft_hinge', margin=1.0, hessian='logistic')"
    assert repr(lightgbm_objective()) == default
    assert repr(eval(default)) == default
    wanted = "(surrogate='squared_hinge', margin=2.0, hessian='pairs')"
    knobs = {"surrogate": "squared_hinge", "margin": 2.0, "hessian": "pairs"}
    assert repr(lightgbm_objective(**knobs)) == f"lightgbm_objective{wanted}"
    assert repr(xgboost_objective(**knobs)) == f"xgboost_objective{wanted}"
    assert repr(catboost_objective([0, 1], **knobs)) == f"catboost_objective{wanted}"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lightgbm_objective(margin=-1.0), "margin must be"),
        (lambda: xgboost_objective(surrogate="squared-hinge"), "Did you mean 'squared_hinge'"),
        (lambda: lightgbm_objective(hessian="exact"), "the exact one; got 'exact'"),
        (lambda: lightgbm_metric("f1"), "metric must be 'auc' or 'loss'; got 'f1'"),
        (lambda: catboost_objective(["fraud", "fine"]), "labels must"),
        (lambda: catboost_objective([0, 1], weights=[1.0, 1.0, 1.0]), "weights must have"),
        (
            lambda: lightgbm_objective()(np.array([0.0, 1.0]), np.zeros((2, 3))),
            r"labels must hold two classes; .* shape \(2, 3\)",
        ),
        (
            lambda: lightgbm_objective()(np.array([0.0, 1.0, 1.0]), np.zeros(3), None, [1, 1]),
            "group must hold sizes that add up to the 3 rows",
        ),
    ],
)
def test_invalid_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()
