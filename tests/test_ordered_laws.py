"""Laws of ordered and survival pairs, for every backend; the double sum is the oracle.

`tests.laws.ORDERED_LAWS` runs them for the backends of other ecosystems.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from everypair import naive
from everypair.surrogates import SQUARED_HINGE, logistic

from .strategies import Answer, Batch, batches, computed, double_sum
from .test_laws import assert_same, law
from .tolerances import assert_close

KINDS = ("ordered", "survival", "uno")


def target_batches(kinds=KINDS, **options):
    """Draw a batch with ordered targets or survival times, from two values to all distinct."""
    return st.builds(
        _with_targets, batches(**options), st.sampled_from(kinds), st.integers(0, 2**32 - 1)
    )


def _with_targets(batch, kind, seed):
    rng = np.random.default_rng(seed)
    n = batch.scores.size
    values = rng.integers(0, rng.choice([2, 3, 5, 2 * n]), n) / 2.0
    if kind == "ordered":
        return Batch(batch.scores, values, batch.vector, {**batch.knobs, "pairs": "ordered"})
    labels = np.column_stack([values, rng.random(n) < rng.choice([0.3, 0.9])])
    knobs = {**batch.knobs, "pairs": "survival"}
    if kind == "uno":
        knobs["censoring"] = "uno"
    return Batch(batch.scores, labels, batch.vector, knobs)


@law(batch=target_batches())
def test_equals_the_double_sum(backend, surrogate, batch):
    assert_same(computed(backend, batch, surrogate), double_sum(batch, surrogate), batch.dtype)


@pytest.mark.no_cover
@law(batch=target_batches())
def test_every_function_gives_the_same_loss(backend, surrogate, batch):
    knobs = {"surrogate": surrogate, **batch.knobs}
    value, grad, _ = backend.derivatives(batch.scores, batch.labels, **knobs)
    loss, same_grad = backend.loss_and_grad(batch.scores, batch.labels, **knobs)
    assert_close(backend.loss(batch.scores, batch.labels, **knobs), value, np.float64)
    assert_close(loss, value, np.float64)
    assert_close(same_grad, grad, batch.dtype)
    assert grad.dtype == same_grad.dtype == batch.dtype


@pytest.mark.no_cover
@law(batch=target_batches(), seed=st.integers(0, 2**32 - 1))
def test_the_order_of_rows_does_not_matter(backend, surrogate, batch, seed):
    order = np.random.default_rng(seed).permutation(batch.scores.size)
    here, there = (computed(backend, b, surrogate) for b in (batch, batch.take(order)))
    shuffled = Answer(here.value, here.grad[order], here.hess[order], here.hvp[order])
    assert_same(there, shuffled, batch.dtype)


@pytest.mark.no_cover
@law(batch=batches())
def test_two_grades_are_binary_labels(backend, surrogate, batch):
    grades = batch.but(pairs="ordered")
    grades.labels = np.where(batch.positive, 7.5, -2.0)
    assert_same(
        computed(backend, grades, surrogate), computed(backend, batch, surrogate), batch.dtype
    )


@pytest.mark.no_cover
@law(batch=target_batches(kinds=("ordered",)))
def test_only_the_order_of_targets_matters(backend, surrogate, batch):
    stretched = batch.but()
    stretched.labels = batch.labels**3 - 100.0
    assert_same(
        computed(backend, stretched, surrogate), computed(backend, batch, surrogate), batch.dtype
    )


@pytest.mark.no_cover
@law(batch=target_batches(weights=True, max_size=30))
def test_an_integer_weight_is_a_repetition(backend, surrogate, batch):
    times = (2 * batch.knobs["weights"]).astype(int)
    assume(times.sum() > 0)
    rows = np.repeat(np.arange(times.size), times)
    weighted = computed(backend, batch.but(weights=times), surrogate)
    repeated = computed(backend, batch.take(rows).but(weights=None), surrogate)
    gathered = [
        np.bincount(rows, weights=copies.astype(np.float64), minlength=times.size)
        for copies in (repeated.grad, repeated.hess, repeated.hvp)
    ]
    assert_same(weighted, Answer(repeated.value, *gathered), batch.dtype, scale=weighted)


@pytest.mark.no_cover
@law(batch=target_batches(kinds=("ordered", "survival"), groups=True))
def test_the_sum_over_groups_is_the_sum_of_each_group_alone(backend, surrogate, batch):
    batch = batch.but(reduction="sum")
    whole = computed(backend, batch, surrogate)
    total = Answer(0.0, *np.zeros((3, batch.scores.size)))
    groups = batch.knobs["groups"]
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        part = computed(backend, batch.take(rows).but(groups=None), surrogate)
        total.value += part.value
        for field in ("grad", "hess", "hvp"):
            getattr(total, field)[rows] = getattr(part, field)
    assert_same(whole, total, batch.dtype)


@pytest.mark.no_cover
@law(batch=target_batches())
def test_targets_without_pairs_give_zero(backend, surrogate, batch):
    if batch.labels.ndim == 1:
        batch.labels = np.full(batch.scores.size, 3.0)
    else:
        batch.labels = batch.labels * [1.0, 0.0]
    answer = computed(backend, batch, surrogate)
    assert answer.value == 0.0
    assert not np.any([answer.grad, answer.hess, answer.hvp])


@pytest.mark.no_cover
@law(batch=target_batches())
def test_gradient_and_hessian_product_sum_to_zero(backend, surrogate, batch):
    answer = computed(backend, batch, surrogate)
    for array in (answer.grad, answer.hvp):
        assert_close(array.astype(np.float64).sum(), 0.0, batch.dtype, scale=np.abs(array).sum())


@given(batch=target_batches(), average=st.sampled_from(["pairs", "groups", "rows"]))
def test_the_concordance_index_equals_the_double_sum(backend, batch, average):
    names = ("weights", "groups", "pairs", "censoring")
    knobs = {name: batch.knobs[name] for name in names if name in batch.knobs}
    knobs["average"] = average
    try:
        expected = naive.auc(batch.scores, batch.labels, **knobs)
    except ValueError:
        with pytest.raises(ValueError, match="at least one pair"):
            backend.auc(batch.scores, batch.labels, **knobs)
        return
    assert_close(backend.auc(batch.scores, batch.labels, **knobs), expected, np.float64)


RATES = st.tuples(*[st.sampled_from([None, 0.0, 0.1, 0.25, 0.5, 0.9])] * 2)


@law(surrogate=st.sampled_from([SQUARED_HINGE, logistic()]), batch=batches(), rates=RATES)
def test_partial_losses_equal_the_double_sum(backend, surrogate, batch, rates):
    batch = batch.but(max_fpr=rates[0], min_tpr=rates[1])
    assert_same(computed(backend, batch, surrogate), double_sum(batch, surrogate), batch.dtype)
