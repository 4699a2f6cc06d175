"""The plan of the compiled kernel for few grades and float32 scores, against that for float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import everypair as ep
from everypair import naive
from everypair.kernel import choose
from everypair.surrogates import SQUARED_HINGE

from .tolerances import assert_close

native = pytest.importorskip("everypair._native", reason="the compiled kernel is not built")

from .test_certified import MARGINS, clusters  # noqa: E402  # which needs the kernel, too


@pytest.fixture
def defaults():
    yield
    ep.set_num_threads(None)
    native.use_isa(native.isas()[-1])


def graded(n, n_grades, seed=0, kind=np.int64):
    """Return float32 scores and grades that they predict badly."""
    rng = np.random.default_rng(seed)
    y = rng.normal(size=n)
    grades = np.digitize(y, np.quantile(y, np.arange(1, n_grades) / n_grades))
    return (0.5 * y + rng.normal(size=n)).astype(np.float32), (3 * grades - 7).astype(kind)


def is_planned(scores, grades, margin=1.0):
    """Return whether the kernel evaluates these rows without a sort, which rounds differently."""
    form = (SQUARED_HINGE.at_margin(margin), None, None)
    grad, exact = np.zeros_like(scores), np.zeros(scores.shape)
    for x, out in ((scores, grad), (scores.astype(np.float64), exact)):
        native.evaluate(x, grades, None, None, (None,), None, form, True, 1, out, None, None)
    return not np.array_equal(grad, exact.astype(scores.dtype))


def assert_equals_exact_plan(scores, grades, **knobs):
    with choose.backend("native"):
        loss, grad = ep.pair_loss_and_grad(scores, grades, pairs="ordered", **knobs)
        exact_loss, exact_grad = ep.pair_loss_and_grad(
            scores.astype(np.float64), grades, pairs="ordered", **knobs
        )
        alone = ep.pair_loss(scores, grades, pairs="ordered", **knobs)
    assert_close(grad, exact_grad, np.float32)
    assert_close(loss, exact_loss, np.float32)
    assert_close(alone, loss, np.float64)


@given(
    seed=st.integers(0, 2**40),
    margin=st.sampled_from(MARGINS),
    n_grades=st.sampled_from((2, 3, 5, 10, 16)),
)
def test_bounds_hold_on_clusters(seed, margin, n_grades):
    scores, labels = clusters(seed)
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(n_grades, rng.choice([0.3, 1.0, 10.0])))
    grades = rng.choice(n_grades, scores.size, p=shares)
    if rng.random() < 0.5:  # so that the scores depend on the grades
        grades = np.where(labels, np.maximum(grades, n_grades // 2), grades)
    grades[:2] = 0, 1
    assert_equals_exact_plan(scores, grades, margin=margin)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64, np.float32, np.float64])
def test_equals_the_double_sum(kind):
    scores, grades = graded(4000, 3, kind=kind)
    if kind is np.uint8:
        grades = grades + np.uint8(7)
    assert is_planned(scores, grades)
    for reduction in ("mean", "sum"):
        knobs = {"pairs": "ordered", "reduction": reduction}
        loss, grad = ep.pair_loss_and_grad(scores, grades, **knobs)
        expected = naive.pair_loss_and_grad(scores, grades, **knobs)
        assert_close(loss, expected[0], np.float32)
        assert_close(grad, expected[1], np.float32)


@pytest.mark.parametrize("n_grades", [2, 3, 5, 16])
@pytest.mark.parametrize("n", [20_000, 200_000])
def test_common_scores_need_no_sort(n, n_grades):
    scores, grades = graded(n, n_grades)
    shapes = {
        "normal": scores,
        "offset": scores + np.float32(1e4),
        "narrow": scores * np.float32(1e-3),
        "wide": scores * np.float32(100.0),
        "ties": np.round(scores * 8) / np.float32(8),
        "probabilities": 1 / (1 + np.exp(-scores)),
    }
    for name, x in shapes.items():
        assert is_planned(x, grades), name
        assert_equals_exact_plan(x, grades)
    assert is_planned(scores, grades, margin=0.0)


def test_grades_that_first_appear_late():
    scores, grades = graded(20_000, 16)
    for order in (np.argsort(grades, kind="stable"), np.argsort(-grades, kind="stable")):
        assert is_planned(scores[order], grades[order])
        assert_equals_exact_plan(scores[order], grades[order])


def test_other_rows_are_left_to_the_other_plans():
    scores, grades = graded(20_000, 5)
    assert not is_planned(scores, np.arange(20_000))
    assert not is_planned(scores, np.zeros(20_000))
    assert not is_planned(scores.astype(np.float64), grades)
    assert not is_planned(scores[:500], grades[:500])
    separated = (10 * grades).astype(np.float32)  # no pair counts
    assert ep.pair_loss(separated, grades, pairs="ordered") == 0.0
    outlier = scores.copy()
    outlier[grades == grades.max()] -= np.float32(1e30)
    assert_equals_exact_plan(outlier, grades)


def test_the_shape_and_the_dtype_of_the_scores():
    scores, grades = graded(4000, 3)
    _, grad = ep.pair_loss_and_grad(scores[:, None].astype(np.float16), grades, pairs="ordered")
    assert grad.shape == (4000, 1)
    assert grad.dtype == np.float16


def test_same_bits_for_any_number_of_threads(defaults):
    for n in (300_000, 1_500_000):
        scores, grades = graded(n, 5)
        answers = set()
        for threads in (1, 2, 3, 8):
            ep.set_num_threads(threads)
            loss, grad = ep.pair_loss_and_grad(scores, grades, pairs="ordered")
            answers.add((loss, grad.tobytes()))
        assert len(answers) == 1


def test_every_instruction_set_agrees(defaults):
    for isa in native.isas():
        native.use_isa(isa)
        for n_grades in (3, 10):
            assert_equals_exact_plan(*graded(30_000, n_grades))
