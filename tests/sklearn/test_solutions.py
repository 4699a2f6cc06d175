"""The coefficients minimise the objective, whichever solver finds them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import everypair as ep
from everypair.sklearn import PairLinearClassifier
from everypair.sklearn._objective import PairObjective, TrainingData, pair_scatter
from everypair.sklearn._solvers import Preconditioner
from everypair.surrogates import Surrogate, Term

from .tables import knobs_of, minimum, pairs, pairwise_ridge, table

KINDS = [{}, {"weighted": True}, {"grouped": True}, {"weighted": True, "grouped": True}]
SOLVERS = ["newton-cg", "lbfgs"]


def fitted(data, kind, **knobs):
    model = PairLinearClassifier(**knobs)
    return model.fit(data.X, data.y, **knobs_of(data, **kind))


def rows_of(data, *, weighted=False, grouped=False):
    weights, groups = data.weights if weighted else None, data.groups if grouped else None
    return TrainingData(data.X, data.y == 1, weights, groups)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("alpha", "margin"), [(1e-4, 1.0), (1.0, 0.5)])
def test_square_equals_ridge_regression_on_explicit_pairs(kind, solver, alpha, margin):
    data = table()
    model = fitted(
        data, kind, surrogate="square", alpha=alpha, margin=margin, solver=solver, tol=1e-9
    )
    exact = pairwise_ridge(data, alpha, margin, **kind)
    np.testing.assert_allclose(model.coef_[0], exact, rtol=1e-8, atol=1e-8 * np.abs(exact).max())


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("alpha", "margin"), [(1e-2, 1.0), (1e-1, 2.0)])
def test_squared_hinge_equals_the_minimum_of_the_double_sum(kind, solver, alpha, margin):
    data = table()
    options = {"surrogate": "squared_hinge", "alpha": alpha, "margin": margin}
    model = fitted(data, kind, solver=solver, tol=1e-8, **options)
    knobs = knobs_of(data, **kind)
    options |= {"weights": knobs["sample_weight"], "groups": knobs["groups"]}
    exact = minimum(data.X, data.y, **options)
    np.testing.assert_allclose(model.coef_[0], exact, rtol=1e-4, atol=1e-6)


def name_of(value):
    return f"{len(value.y)} rows" if hasattr(value, "y") else getattr(value, "name", value)


STEEP = Surrogate("steep", [Term(0, 1, 0, knot=0), Term(-1, 1, 0, knot=1)])


TALL = [(table(n=400), surrogate) for surrogate in (*ep.surrogates.names(), STEEP)]
WIDE = [(table(n=60, d=80), name) for name in ("square", "squared_hinge", "huber_hinge")]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("data", "surrogate"), [*TALL, *WIDE], ids=name_of)
def test_both_solvers_reach_the_same_objective(kind, data, surrogate):
    options = {"surrogate": surrogate, "alpha": 1e-2, "max_iter": 2000}
    newton, lbfgs = (fitted(data, kind, solver=solver, **options) for solver in SOLVERS)
    assert abs(newton.objective_ - lbfgs.objective_) <= 1e-8


@pytest.mark.parametrize("surrogate", ep.surrogates.names())
def test_other_coefficients_have_a_larger_objective(surrogate):
    data = table()
    rng = np.random.default_rng(1)

    def objective(coef):
        loss = ep.naive.pair_loss(data.X @ coef, data.y, surrogate=surrogate)
        return loss + 0.5 * 1e-2 * coef @ coef

    coef = fitted(data, {}, surrogate=surrogate, alpha=1e-2).coef_[0]
    for scale in (1e-3, 1e-2, 1e-1):
        for _ in range(20):
            # Rounding the kink of the linear hinge may cost 1e-3 / 8 at most.
            assert objective(coef) <= objective(coef + scale * rng.standard_normal(5)) + 1e-6


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_derivatives_match_finite_differences(kind):
    data = table(n=40)
    objective = PairObjective(rows_of(data, **kind), ep.surrogates.SQUARED_HINGE, 1.0, 0.1)
    rng = np.random.default_rng(0)
    coef, vector = rng.standard_normal((2, 5)) * 0.1

    def value_and_grad(coef):
        value, score_grad = objective.value_and_score_grad(coef, objective.scores(coef))
        return value, objective.grad(coef, score_grad)

    ahead, behind = value_and_grad(coef + 1e-6 * vector), value_and_grad(coef - 1e-6 * vector)
    grad = value_and_grad(coef)[1]
    assert (ahead[0] - behind[0]) / 2e-6 == pytest.approx(grad @ vector, rel=1e-6)
    hvp = objective.hvp(objective.scores(coef), vector, objective.scores(vector))
    np.testing.assert_allclose((ahead[1] - behind[1]) / 2e-6, hvp, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("container", [np.asarray, sp.csr_matrix, sp.csr_array])
def test_the_scatter_is_the_hessian_where_all_pairs_are_active(kind, container):
    data = table()
    differences, share = pairs(data, **kind)
    exact = 2.0 * (differences * share[:, None]).T @ differences
    rows = rows_of(data._replace(X=container(data.X)), **kind)
    objective = PairObjective(rows, ep.surrogates.SQUARE, 1.0, 0.0)
    hess = objective.score_hess(np.zeros(len(data.y)))
    scatter = pair_scatter(rows, hess, diagonal=False)
    np.testing.assert_allclose(scatter, exact, rtol=1e-10, atol=1e-10)
    diagonal = pair_scatter(rows, hess, diagonal=True)
    np.testing.assert_allclose(diagonal, exact.diagonal(), rtol=1e-10)


@pytest.mark.parametrize("solver", SOLVERS)
def test_offsets_of_columns_do_not_matter(solver):
    data = table()
    near = fitted(data, {}, solver=solver)
    far = fitted(data._replace(X=data.X + 1e7), {}, solver=solver)
    np.testing.assert_allclose(far.coef_, near.coef_, rtol=1e-5, atol=1e-5)
    assert far.score(data.X + 1e7, data.y) == near.score(data.X, data.y)


@pytest.mark.parametrize("solver", SOLVERS)
def test_scales_of_columns_hardly_change_the_number_of_iterations(solver):
    data = table(n=400)
    units = np.array([1e-6, 1.0, 1e6, 1e3, 1e-3])
    even = fitted(data, {}, solver=solver, alpha=0.0)
    odd = fitted(data._replace(X=data.X * units), {}, solver=solver, alpha=0.0)
    np.testing.assert_allclose(odd.coef_ * units, even.coef_, rtol=1e-4)
    assert odd.n_iter_ <= even.n_iter_ + 5


def test_constant_repeated_and_useless_columns():
    data = table()
    X = np.column_stack([data.X, data.X[:, 0], np.full(len(data.y), 3.0)])
    coef = PairLinearClassifier(tol=1e-8).fit(X, data.y).coef_[0]
    assert coef[0] == pytest.approx(coef[5], rel=1e-4)
    assert coef[6] == pytest.approx(0.0, abs=1e-8)
    for nothing in (np.ones((len(data.y), 2)), 1e-100 * data.X):  # gradients whose norm is zero
        model = PairLinearClassifier(alpha=1e308).fit(nothing, data.y)
        assert not model.coef_.any()
        assert model.n_iter_ == 1


@pytest.mark.parametrize("surrogate", ["squared_hinge", "linear_hinge"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_separable_classes_without_penalty(surrogate, solver):
    X = np.arange(8.0)[:, None]
    y = [0, 0, 0, 0, 1, 1, 1, 1]
    model = PairLinearClassifier(alpha=0.0, surrogate=surrogate, solver=solver).fit(X, y)
    assert (model.predict(X) == y).all()


def test_the_objective_decreases_for_a_non_convex_surrogate():
    # t^2, and beyond 1 its mirror image, up to 2 and flat from there
    rising, bending, flat = Term(0, 0, 1, knot=0), Term(-2, 4, -2, knot=1), Term(4, -4, 1, knot=2)
    capped = Surrogate("capped", [rising, bending, flat])
    data = table()
    model = fitted(data, {}, surrogate=capped, solver="newton-cg", alpha=1e-2)
    assert model.objective_ < ep.pair_loss(np.zeros(len(data.y)), data.y, surrogate=capped)


def test_a_scatter_that_has_no_root_leaves_its_diagonal():
    preconditioner = Preconditioner(np.array([[3.0, 9.0], [9.0, 3.0]]), alpha=1.0)
    np.testing.assert_allclose(preconditioner.coef(np.ones(2)), [0.5, 0.5])
    np.testing.assert_allclose(preconditioner.coordinates(np.ones(2)), [2.0, 2.0])
