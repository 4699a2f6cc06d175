"""What an objective returns, against the double sum and against the logistic loss."""

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
from everypair.boosting._scaling import LogisticUnits

WITH_CURVATURE = [SOFT_HINGE, "squared_hinge", "square", ("huber_hinge", 0.5)]
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
def test_the_gradient_is_that_of_the_double_sum(rows, given, weighted):
    scores, labels, weights = rows
    weights = weights if weighted else None
    units = LogisticUnits(**knobs(given))
    grad, _ = lightgbm_objective(**knobs(given))(labels, scores, weights)
    _, expected = naive.pair_loss_and_grad(
        scores / units.stretch, labels, weights=weights, **knobs(given)
    )
    w = np.ones(60) if weights is None else weights
    n_pos, n = w[labels > 0].sum(), w.sum()
    expected = expected * units.height / units.stretch * n_pos * (n - n_pos) / n
    np.testing.assert_allclose(grad, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("given", WITH_CURVATURE, ids=str)
def test_the_hessian_is_the_slope_of_the_gradient(rows, given):
    scores, labels, weights = rows
    objective = xgboost_objective(**knobs(given))
    _, hess = objective(labels, scores, weights)
    step = 1e-6
    for i in range(0, 60, 7):
        up, down = scores.copy(), scores.copy()
        up[i] += step
        down[i] -= step
        slope = objective(labels, up, weights)[0][i] - objective(labels, down, weights)[0][i]
        assert hess[i] == pytest.approx(slope / (2 * step), rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("given", WITH_CURVATURE, ids=str)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_at_equal_scores_a_pair_is_a_row_of_the_logistic_loss(objective, given):
    labels = np.array([1.0, 0.0, 0.0, 0.0, 0.0])
    grad, hess = OBJECTIVES[objective](**knobs(given))(labels, np.full(5, 3.0))
    np.testing.assert_allclose(grad, np.array([-4.0, 1.0, 1.0, 1.0, 1.0]) / 5 / 2)
    np.testing.assert_allclose(hess, np.array([4.0, 1.0, 1.0, 1.0, 1.0]) / 5 / 4)


def test_copies_of_the_table_scale_the_sums_as_rows_do(rows):
    scores, labels, _ = rows
    once = lightgbm_objective()(labels, scores)
    thrice = lightgbm_objective()(np.tile(labels, 3), np.tile(scores, 3))
    np.testing.assert_allclose(np.tile(once, 3), thrice, rtol=1e-10, atol=1e-14)


def test_a_weight_is_a_repetition(rows):
    scores, labels, _ = rows
    counts = np.arange(60) % 3
    weighted = lightgbm_objective()(labels, scores, counts)
    repeated = lightgbm_objective()(np.repeat(labels, counts), np.repeat(scores, counts))
    for of_rows, of_copies in zip(weighted, repeated, strict=True):
        expected = np.bincount(np.repeat(np.arange(60), counts), of_copies, minlength=60)
        np.testing.assert_allclose(of_rows, expected, rtol=1e-10, atol=1e-14)


def test_only_pairs_inside_a_group_count(rows):
    scores, labels, _ = rows
    sizes = [20, 30, 10]
    grad, _ = lightgbm_objective()(labels, scores, None, sizes)
    moved = scores + np.repeat([0.0, 100.0, -50.0], sizes)
    np.testing.assert_allclose(lightgbm_objective()(labels, moved, None, sizes)[0], grad, rtol=1e-8)


def test_the_soft_hinge_is_smooth_convex_and_half_way_at_its_margin():
    t = np.linspace(-1.0, 3.0, 401)
    assert SOFT_HINGE.slope(1.0) == pytest.approx(0.5)
    assert SOFT_HINGE.slope(3.0) == pytest.approx(1.0)
    assert SOFT_HINGE.value(0.0) == 0.0
    assert (np.diff(SOFT_HINGE.slope(t)) > -1e-12).all()
    assert np.abs(np.diff(SOFT_HINGE.slope(t))).max() < 0.01


def test_one_class_is_no_pair():
    grad, hess = lightgbm_objective()(np.ones(5), np.arange(5.0))
    assert not grad.any()
    assert not hess.any()
    assert not any(part.any() for part in lightgbm_objective()(np.ones(3), np.ones(3), np.zeros(3)))


def test_metrics_are_exact_and_say_which_way_is_up(rows):
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
    # Squared hinge: stretch 2 and height 1/2, so a pair at equal scores costs 1/2.
    assert loss == pytest.approx(naive.pair_loss(scores / 2.0, labels) / 2.0)
    assert xgboost_metric("loss", surrogate="squared_hinge")(labels, scores) == loss


@pytest.mark.parametrize("make", [*OBJECTIVES.values(), lightgbm_metric, xgboost_metric])
def test_objectives_and_metrics_pickle(rows, make):
    scores, labels, _ = rows
    again = pickle.loads(pickle.dumps(make()))
    assert str(again(labels, scores)) == str(make()(labels, scores))


def catboost_of_two(**knobs):
    return catboost_objective([0, 1], **knobs)


@pytest.mark.parametrize("make", [*OBJECTIVES.values(), catboost_of_two])
def test_a_surrogate_without_curvature_is_refused(make):
    with pytest.raises(ValueError, match="surrogate must have a slope and a curvature above 0"):
        make(surrogate="linear_hinge")
    with pytest.raises(ValueError, match=r"margin=0 has slope 0 and curvature 0 there\. Choose"):
        make(surrogate="squared_hinge", margin=0.0)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="margin must be"):
        lightgbm_objective(margin=-1.0)
    with pytest.raises(ValueError, match="Did you mean 'squared_hinge'"):
        xgboost_objective(surrogate="squared-hinge")
    with pytest.raises(ValueError, match="metric must be 'auc' or 'loss'; got 'f1'"):
        lightgbm_metric("f1")
    with pytest.raises(ValueError, match="group must hold sizes that add up to the 3 rows"):
        lightgbm_objective()(np.array([0.0, 1.0, 1.0]), np.zeros(3), None, [1, 1])
