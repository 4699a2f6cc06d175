"""The plans of the compiled kernel for many float32 rows, against its exact plan for float64.

The laws compare the exact plan with the double sum, which would take minutes at these sizes.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import everypair as ep
from everypair.kernel import choose
from everypair.surrogates import Surrogate, Term

from .strategies import POLYNOMIALS
from .tolerances import assert_close

native = pytest.importorskip("everypair._native", reason="the compiled kernel is not built")

MARGINS = (0.0, 1e-6, 1e-3, 0.1, 1.0, 10.0, 1e4)


def bending(*bends):
    """Make a surrogate whose curvature changes by `b` at each knot `k`."""
    terms = [Term(b * k * k, -2 * b * k, b, knot=k) for b, k in bends]
    return Surrogate("bending", terms)


ON_ONE_GRID = bending((0.1, 0.0), (0.3, 0.625), (-0.3, 1.375), (-0.1, 2.0))
NOT_ON_A_GRID = bending((0.5, 0.0), (0.25, 1.0 / np.pi), (-0.75, 1.0))


def clusters(seed):
    """Scores in clusters of many widths, with heavy tails, ties, offsets and few positives."""
    rng = np.random.default_rng(seed)
    n = int(10 ** rng.uniform(3.5, 5.0))
    k = rng.integers(1, 6)
    which = rng.choice(k, n, p=rng.dirichlet(np.full(k, rng.choice([0.2, 1, 5]))))
    centres = rng.normal(size=k) * rng.choice([1e-3, 1, 10, 1e3, 1e6])
    widths = 10 ** rng.uniform(-8, 2, k) * rng.choice([0, 1, 1, 1], k)
    shapes = (
        lambda: rng.normal(size=n),
        lambda: rng.standard_cauchy(n),
        lambda: rng.uniform(-1, 1, n),
        lambda: rng.choice([-1, 1], n) * 10 ** rng.uniform(-12, 3, n),
    )
    scores = centres[which] + widths[which] * shapes[rng.integers(4)]()
    if rng.random() < 0.2:
        scores = np.round(scores * rng.choice([1, 10, 100])) / 100
    if rng.random() < 0.2:
        scores = 1 / (1 + np.exp(-np.clip(scores * 20, -700, 700)))
    labels = rng.random(n) < 10 ** rng.uniform(-3.3, -0.3)
    if rng.random() < 0.5:
        labels = ~labels
    scores = scores + labels * rng.choice([0, 0, 1, -1, 8])
    labels[:2] = True, False
    offset = rng.choice([0, 0, 0, 1, 1e3, 1e6, -1e6])
    return (scores + offset).astype(np.float32), labels


def assert_equals_exact_plan(scores, labels, **knobs):
    with choose.backend("native"):
        loss, grad = ep.pair_loss_and_grad(scores, labels, **knobs)
        exact_loss, exact_grad = ep.pair_loss_and_grad(scores.astype(np.float64), labels, **knobs)
    assert_close(grad, exact_grad, np.float32)
    assert_close(loss, exact_loss, np.float32)


@given(seed=st.integers(0, 2**40), margin=st.sampled_from(MARGINS))
@example(seed=217, margin=0.0)  # many ties of both classes at the upper end of the axis
@pytest.mark.parametrize(
    "surrogate", ["squared_hinge", "huber_hinge", ON_ONE_GRID, NOT_ON_A_GRID], ids=str
)
def test_bounds_hold_on_clusters(surrogate, seed, margin):
    assert_equals_exact_plan(*clusters(seed), margin=margin, surrogate=surrogate)


SKEWED = {
    "saturated sigmoid": lambda rng, z, y: 1 / (1 + np.exp(-rng.uniform(1, 40) * (z + 2 * y - 1))),
    "lognormal": lambda rng, z, y: np.exp(rng.uniform(0.5, 4) * z + y),
    "Cauchy": lambda rng, z, y: rng.standard_cauchy(z.size) + y,
    "Cauchy cubed": lambda rng, z, y: rng.standard_cauchy(z.size) ** 3 + y,
    "two clusters": lambda rng, z, y: np.where(z > 0, 1 + 1e-6 * z, 1e-4 * z) + y,
    "many decades": lambda rng, z, y: (
        rng.choice([-1, 1], z.size) * 10 ** rng.uniform(-20, 5, z.size)
    ),
    "one outlier": lambda rng, z, y: np.where(
        np.arange(z.size) == 5, rng.choice([-1e4, 1e4]), 1e-6 * z
    ),
}


@given(
    seed=st.integers(0, 2**40),
    kind=st.sampled_from(sorted(SKEWED)),
    margin=st.sampled_from(MARGINS),
)
@example(seed=791, kind="Cauchy cubed", margin=1.0)  # one heavy bucket below a distant outlier
def test_gradients_of_each_class_for_skewed_scores(seed, kind, margin):
    rng = np.random.default_rng(seed)
    n = int(np.exp(rng.uniform(np.log(300), np.log(60_000))))
    labels = rng.random(n) < 10 ** rng.uniform(-2.5, -0.3)
    labels[:2] = True, False
    scores = SKEWED[kind](rng, rng.normal(size=n), labels).astype(np.float32)
    with choose.backend("native"):
        _, grad = ep.pair_loss_and_grad(scores, labels, margin=margin)
        _, exact = ep.pair_loss_and_grad(scores.astype(np.float64), labels, margin=margin)
    for of_class in (labels, ~labels):
        assert_close(grad[of_class], exact[of_class], np.float32)


WEIGHTS = {
    "near 1": lambda rng, n: rng.uniform(0.5, 2, n),
    "constant": lambda rng, n: np.full(n, 0.1),
    "half zero": lambda rng, n: rng.random(n) * (rng.random(n) < 0.5),
    "heavy tail": lambda rng, n: rng.pareto(1.2, n),
    "one heavy row": lambda rng, n: np.where(np.arange(n) == rng.integers(n), 1e9, 1.0),
    "ten decades": lambda rng, n: 10.0 ** rng.uniform(-5, 5, n),
    "300 decades": lambda rng, n: 10.0 ** rng.uniform(-150, 150, n),
    "large and small": lambda rng, n: rng.choice([1e160, 1e-170]) * rng.uniform(0.5, 2, n),
}


@given(
    seed=st.integers(0, 2**40),
    margin=st.sampled_from(MARGINS),
    kind=st.sampled_from(sorted(WEIGHTS)),
    reduction=st.sampled_from(["mean", "sum"]),
)
@pytest.mark.parametrize("surrogate", ["squared_hinge", "huber_hinge", ON_ONE_GRID], ids=str)
def test_bounds_hold_with_weights(surrogate, seed, margin, kind, reduction):
    scores, labels = clusters(seed)
    weights = WEIGHTS[kind](np.random.default_rng(seed), scores.size)
    weights[:2] = weights.max()  # so that both classes have weight
    if reduction == "sum":  # so that float32 holds the gradients
        weights /= weights.max()
    knobs = {"surrogate": surrogate, "margin": margin, "reduction": reduction}
    assert_equals_exact_plan(scores, labels, weights=weights, **knobs)


@pytest.mark.parametrize("surrogate", ["squared_hinge", "huber_hinge"])
@pytest.mark.parametrize("gap", [1e-2, 1e-3, 1e-4, 1e-5])
def test_a_heavy_row_close_to_the_end(gap, surrogate):
    # Its gradient is the largest one, but small in relation to its weight.
    rng = np.random.default_rng(9)
    scores = rng.normal(size=40_000).astype(np.float32)
    labels, weights = rng.random(40_000) < 0.5, np.ones(40_000)
    scores[0], labels[0], weights[0] = scores[~labels].max() + 1.0 - gap, True, 1e11
    assert_equals_exact_plan(scores, labels, weights=weights, surrogate=surrogate)


def test_distant_rows_of_weight_zero_among_many():
    rng = np.random.default_rng(8)
    scores = rng.normal(size=40_000).astype(np.float32)
    labels, weights = rng.random(40_000) < 0.3, rng.uniform(0.5, 2, 40_000)
    with choose.backend("native"):
        expected = ep.pair_loss_and_grad(scores, labels, weights=weights)
        far = rng.choice([3e38, -3e38, 0.0], 500).astype(np.float32)
        loss, grad = ep.pair_loss_and_grad(
            np.append(scores, far),
            np.append(labels, rng.random(500) < 0.5),
            weights=np.append(weights, np.zeros(500)),
        )
    assert loss == pytest.approx(expected[0], rel=1e-13)
    np.testing.assert_array_equal(grad[:40_000], expected[1])
    assert not grad[40_000:].any()


# Found by running the search above for minutes.
@pytest.mark.parametrize(
    ("seed", "margin"),
    [(538237826265, 0.0), (967160229709, 0.0), (663966950124, 1e-6), (16974579401, 0.0)],
)
def test_loss_inside_one_bucket(seed, margin):
    assert_equals_exact_plan(*clusters(seed), margin=margin)


@pytest.mark.parametrize("seed", range(4))
def test_ties_at_a_large_offset(seed):
    rng = np.random.default_rng(seed)
    scores = (rng.normal(size=4500) * 0.01 - 1e6).astype(np.float32)
    assert_equals_exact_plan(scores, rng.random(4500) < 0.3, margin=0.0)


@pytest.mark.parametrize("n", [1_100_000, 2_300_000])
def test_more_rows_than_fit_in_one_table_of_counts(n):
    rng = np.random.default_rng(n)
    labels = rng.random(n) < 0.3
    for scores in (rng.normal(size=n), rng.integers(0, 3, n), rng.standard_cauchy(n)):
        assert_equals_exact_plan((scores + labels).astype(np.float32), labels)


@pytest.fixture
def default_isa():
    yield
    native.use_isa(native.isas()[-1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("surrogate", [s.name for s in POLYNOMIALS])
def test_every_instruction_set_agrees(default_isa, surrogate, dtype):
    rng = np.random.default_rng(5)
    labels = rng.random(20_000) < 0.1
    weights = rng.random(20_000)
    scores = (rng.standard_cauchy(20_000) + labels).astype(dtype)
    answers = []
    for isa in native.isas():
        native.use_isa(isa)
        assert native.isa() == isa
        with choose.backend("native"):
            answers.append(
                [
                    *ep.pair_loss_and_grad(scores, labels, surrogate=surrogate),
                    *ep.pair_derivatives(scores, labels, surrogate=surrogate, weights=weights),
                    ep.pair_hvp(scores, labels, np.cos(scores), surrogate=surrogate),
                    ep.auc(scores, labels),
                ]
            )
    for other in answers[1:]:
        for got, expected in zip(other, answers[0], strict=True):
            assert_close(got, expected, dtype)


def test_unknown_instruction_set():
    with pytest.raises(ValueError, match="cannot run sse9"):
        native.use_isa("sse9")


def test_a_distant_row_of_weight_zero_does_not_change_the_result():
    rng = np.random.default_rng(2)
    scores = np.append(rng.normal(size=49) * 1e-3, -1e6)
    labels = np.append(rng.random(49) < 0.5, True)
    for weight in (0.0, 1e-12):
        weights = np.append(np.ones(49), weight)
        knobs = {"margin": 0.0, "weights": weights}
        expected = ep.naive.pair_loss_and_grad(scores, labels, **knobs)
        with choose.backend("native"):
            loss, grad = ep.pair_loss_and_grad(scores, labels, **knobs)
        assert_close(loss, expected[0], np.float64)
        assert_close(grad, expected[1], np.float64)


def test_no_negative_zeros():
    with choose.backend("native"):
        for surrogate in POLYNOMIALS:
            _, grad = ep.pair_loss_and_grad(
                [5.0, 2.0, 0.0, -1.0], [1, 1, 0, 0], surrogate=surrogate
            )
            assert not np.signbit(grad[grad == 0]).any()


HAT = bending((1.0, 0.0), (-2.0, 1.0), (1.0, 2.0))


@pytest.mark.parametrize("knots", [(0.0, 0.0), (0.0, 0.0, 99.0)])
def test_terms_that_share_a_knot(knots):
    rng = np.random.default_rng(6)
    labels = rng.random(50_000) < 0.3
    scores = rng.normal(size=50_000).astype(np.float32)
    assert_equals_exact_plan(scores, labels, surrogate=bending(*((1.0, knot) for knot in knots)))


@pytest.mark.parametrize("gap", [0.1, 0.01, 0.001])
def test_partial_sums_much_larger_than_the_gradient(gap):
    place = 2.0 * np.repeat(np.arange(3000), 10)
    scores = np.concatenate([place, place - gap]).astype(np.float32)
    assert_equals_exact_plan(scores, np.arange(60_000) < 30_000, surrogate=HAT, margin=0.0)


def test_a_margin_much_larger_than_most_scores():
    rng = np.random.default_rng(7)
    labels = np.arange(60_000) < 30_000
    far = 2.0**43
    scores = np.where(labels, far, rng.integers(0, 33, 60_000) / 4).astype(np.float32)
    surrogate = bending((1.0, 0.0), (1.0, 1.0), (1.0, 3.0))
    assert_equals_exact_plan(scores, labels, surrogate=surrogate, margin=far)
