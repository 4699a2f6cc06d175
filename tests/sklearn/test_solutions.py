"""The coefficients minimise the objective, whichever solver finds them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import everypair as ep
from everypair.sklearn import PairLinearClassifier, PairLinearRanker, PairLinearSurvival
from everypair.sklearn._smoothing import smoothed, stages
from everypair.surrogates import Surrogate, Term

from .tables import minimum, table

KINDS = [{}, {"weighted": True}, {"grouped": True}, {"weighted": True, "grouped": True}]
SOLVERS = ["newton-cg", "lbfgs"]


def fitted(data, kind=KINDS[0], **knobs):
    return PairLinearClassifier(**knobs).fit(data.X, data.y, **data.knobs(**kind))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("surrogate", ["square", "squared_hinge", "logistic"])
@pytest.mark.parametrize("pairs", ["binary", "ordered", "survival"])
def test_the_solution_minimises_the_double_sum(kind, solver, surrogate, pairs):
    data, rng = table(n=90), np.random.default_rng(0)
    target = np.round(data.X @ [1.0, -0.3, 2.0, 0.0, 0.1] + rng.normal(size=90))
    survival = np.column_stack([np.exp(-data.X[:, 0]), rng.random(90) < 0.6])
    censoring = {"censoring": "uno"} if pairs == "survival" else {}
    model, y = {
        "binary": (PairLinearClassifier(), data.y),
        "ordered": (PairLinearRanker(), target),
        "survival": (PairLinearSurvival(**censoring), survival),
    }[pairs]
    model.set_params(surrogate=surrogate, solver=solver, alpha=1e-2, margin=0.7, tol=1e-7)
    weights, groups = data.knobs(**kind).values()
    options = {"surrogate": surrogate, "margin": 0.7, "weights": weights, "groups": groups}
    exact = minimum(data.X, y, 1e-2, pairs=pairs, **options, **censoring)
    for container in (np.asarray, sp.csr_matrix, sp.csc_array):
        model.fit(container(data.X), y, weights, groups)
        np.testing.assert_allclose(model.coef_.ravel(), exact, rtol=1e-4, atol=1e-6)
    if surrogate == "square" and pairs == "binary":
        assert model.n_iter_ <= 2  # the preconditioner is the Hessian


def name_of(value):
    return f"{len(value.y)} rows" if hasattr(value, "y") else getattr(value, "name", value)


STEEP = Surrogate("steep", [Term(0, 1, 0, knot=0), Term(-1, 1, 0, knot=1)])
TALL = [(table(n=400), surrogate) for surrogate in (*ep.surrogates.names(), STEEP)]
WIDE = [(table(n=60, d=80), name) for name in ("square", "squared_hinge", "huber_hinge")]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("data", "surrogate"), [*TALL, *WIDE], ids=name_of)
def test_both_solvers_reach_the_minimum(kind, data, surrogate):
    options = {"surrogate": surrogate, "alpha": 1e-2, "max_iter": 2000}
    newton, lbfgs = (fitted(data, kind, solver=solver, **options) for solver in SOLVERS)
    assert abs(newton.objective_ - lbfgs.objective_) <= 1e-8
    weights, groups = data.knobs(**kind).values()
    coef, rng = newton.coef_[0], np.random.default_rng(1)
    for scale in (0.0, 1e-3, 1e-2, 1e-1):
        other = coef + scale * rng.standard_normal(coef.shape)
        knobs = {"surrogate": surrogate, "weights": weights, "groups": groups}
        objective = ep.pair_loss(data.X @ other, data.y, **knobs) + 0.5 * 1e-2 * other @ other
        # Smoothing the jump of a slope may cost 1e-3 / 8 of it.
        assert newton.objective_ <= objective + 3e-4 * (scale == 0.0) + 1e-6


@pytest.mark.parametrize("solver", SOLVERS)
def test_offsets_of_columns_do_not_matter(solver):
    data = table()
    near = fitted(data, solver=solver)
    far = fitted(data._replace(X=data.X + 1e7), solver=solver)
    np.testing.assert_allclose(far.coef_, near.coef_, rtol=1e-5, atol=1e-5)
    assert far.score(data.X + 1e7, data.y) == near.score(data.X, data.y)


@pytest.mark.parametrize("solver", SOLVERS)
def test_scales_of_columns_hardly_change_the_number_of_iterations(solver):
    data = table(n=400)
    units = np.array([1e-6, 1.0, 1e6, 1e3, 1e-3])
    even = fitted(data, solver=solver, alpha=0.0)
    odd = fitted(data._replace(X=data.X * units), solver=solver, alpha=0.0)
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
    model = fitted(data, surrogate=capped, solver="newton-cg", alpha=1e-2)
    assert model.objective_ < ep.pair_loss(np.zeros(len(data.y)), data.y, surrogate=capped)


HALF = Term(0, 0, 0.5, knot=0)
MIXED = Surrogate("mixed", [Term(0, 1, 0.5), Term(-1, -1, 2, knot=1), HALF, HALF])


@pytest.mark.parametrize("surrogate", [ep.surrogates.LINEAR_HINGE, MIXED], ids=lambda s: s.name)
@pytest.mark.parametrize("width", [1.0, 1e-3])
def test_smoothing_changes_values_near_the_kink_only(surrogate, width):
    assert len(stages(surrogate, width)) > 1
    rounded = smoothed(surrogate, width)
    assert stages(rounded, width) == [rounded]
    t = np.linspace(-3, 5, 2001)
    gap = rounded.value(t) - surrogate.value(t)
    knots = [term.knot for term in surrogate.terms if term.knot is not None]
    near = np.min([np.abs(t - k) for k in knots], axis=0) <= width / 2
    jump = 3.0 if surrogate is MIXED else 1.0
    assert np.abs(gap[~near]).max() < 1e-8
    assert np.abs(gap).max() <= jump * width / 8 + 1e-8


def test_a_surrogate_with_a_jump_raises():
    step = Surrogate("step", [Term(1, 0, 0, knot=0)])
    with pytest.raises(ValueError, match=r"surrogate must be continuous.*'step' jumps"):
        PairLinearClassifier(surrogate=step).fit([[0.0], [1.0]], [0, 1])
