"""Laws that the losses obey, for every backend, every surrogate and every kind of pairs.

A law draws its surrogate along with the batch, and holds for the batches of one generator or of
both: those of `batches` have two classes, those of `targets` ordered targets or survival times. A
module that defines a fixture `backend` and calls ``globals().update(LAWS)`` or
``globals().update(ORDERED_LAWS)`` runs them for its backend.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import wraps

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from everypair.surrogates import LINEAR_HINGE, SQUARE, SQUARED_HINGE, logistic

from .strategies import Answer, all_surrogates, batches, computed, double_sum, targets
from .tolerances import assert_close

# A law has more examples than other properties, because it draws one of ten surrogates.
EXAMPLES = 5 * settings().max_examples // 2
FIELDS = ("value", "grad", "hess", "hvp")
LAWS, ORDERED_LAWS = {}, {}


def law(*generators, surrogate=None, batch=None, **drawn):
    """Declare a property of every surrogate, or of those that `surrogate` draws.

    It becomes one law for each generator of batches; `batch` holds options of the generators.
    Coverage is measured while the first law runs, which executes the same lines as the others:
    measuring it makes a law take more than twice as long.
    """
    surrogate = all_surrogates() if surrogate is None else surrogate

    def declare(check):
        for generator in generators:
            laws, ending = (LAWS, "") if generator is batches else (ORDERED_LAWS, "_of_targets")
            test = given(surrogate=surrogate, batch=generator(**(batch or {})), **drawn)
            test = settings(max_examples=EXAMPLES)(test(_assuming_surrogates(check)))
            laws[check.__name__ + ending] = pytest.mark.no_cover(test) if laws else test
        return check

    return declare


def _assuming_surrogates(check):
    """Leave out smooth surrogates that a backend does not name: each one compiles new programs."""

    @wraps(check)
    def test(backend, surrogate, **drawn):
        names = getattr(backend, "smooth_names", None)
        assume(names is None or surrogate.is_polynomial or surrogate.name in names)
        check(backend, surrogate, **drawn)

    return test


@contextmanager
def examples_over(divisor):
    """Divide the number of examples by `divisor` inside the block, for slow backends.

    Two examples are left at least: the first one is always the simplest batch there is.
    """
    with pytest.MonkeyPatch.context() as patch:
        for law in (*LAWS.values(), *ORDERED_LAWS.values()):
            usual = law._hypothesis_internal_use_settings
            fewer = settings(usual, max_examples=max(2, usual.max_examples // divisor))
            patch.setattr(law, "_hypothesis_internal_use_settings", fewer)
        yield


def assert_same(got: Answer, expected: Answer, dtype, scale: Answer | None = None):
    """Compare all fields; errors are relative to `expected` or to `scale`, whichever is larger."""
    for field in FIELDS:
        size = 0.0 if scale is None else np.abs(getattr(scale, field)).max(initial=0.0)
        assert_close(getattr(got, field), getattr(expected, field), dtype, scale=size)


@law(batches, targets)
def test_equals_the_double_sum(backend, surrogate, batch):
    assert_same(computed(backend, batch, surrogate), double_sum(batch, surrogate), batch.dtype)


@law(batches, targets)
def test_every_function_gives_the_same_loss(backend, surrogate, batch):
    knobs = {"surrogate": surrogate, **batch.knobs}
    value, grad, _ = backend.derivatives(batch.scores, batch.labels, **knobs)
    loss, same_grad = backend.loss_and_grad(batch.scores, batch.labels, **knobs)
    # The plan of a loss may differ from that of a Hessian.
    assert_close(backend.loss(batch.scores, batch.labels, **knobs), value, batch.dtype)
    assert_close(loss, value, batch.dtype)
    assert_close(same_grad, grad, batch.dtype)
    assert grad.dtype == same_grad.dtype == batch.dtype


@law(batches, targets, seed=st.integers(0, 2**32 - 1))
def test_the_order_of_rows_does_not_matter(backend, surrogate, batch, seed):
    order = np.random.default_rng(seed).permutation(batch.scores.size)
    here, there = (computed(backend, b, surrogate) for b in (batch, batch.take(order)))
    shuffled = Answer(here.value, here.grad[order], here.hess[order], here.hvp[order])
    assert_same(there, shuffled, batch.dtype)


@law(batches, targets, steps=st.integers(-1000, 1000))
def test_adding_a_constant_to_the_scores_changes_nothing(backend, surrogate, batch, steps):
    # Steps on the grid of the batch keep the shifted scores exact.
    grid = 2.0**-20 if np.abs(batch.scores).max() < 2.0**-10 else 1.0
    shifted = batch.but()
    shifted.scores = batch.scores + batch.dtype.type(steps * grid)
    assert_same(
        computed(backend, shifted, surrogate), computed(backend, batch, surrogate), batch.dtype
    )


@law(batches)
def test_negating_scores_and_swapping_labels_negates_the_gradient(backend, surrogate, batch):
    mirror = batch.but()
    mirror.scores, mirror.labels = -batch.scores, ~batch.positive
    here, there = (computed(backend, b, surrogate) for b in (batch, mirror))
    assert_same(there, Answer(here.value, -here.grad, here.hess, here.hvp), batch.dtype)


HOMOGENEOUS = {SQUARE: 2, SQUARED_HINGE: 2, LINEAR_HINGE: 1}


@law(batches, targets, surrogate=st.sampled_from(list(HOMOGENEOUS)), power=st.integers(-10, 10))
def test_scaling_scores_and_margin_scales_the_loss(backend, surrogate, batch, power):
    c, degree = 2.0**power, HOMOGENEOUS[surrogate]
    scaled = batch.but(margin=c * batch.knobs["margin"])
    scaled.scores = batch.scores * batch.dtype.type(c)
    here, there = (computed(backend, b, surrogate) for b in (batch, scaled))
    second = (c ** (degree - 2) * array for array in (here.hess, here.hvp))
    expected = Answer(c**degree * here.value, c ** (degree - 1) * here.grad, *second)
    assert_same(there, expected, batch.dtype)


@law(batches, targets, batch={"weights": True, "max_size": 30})
def test_an_integer_weight_is_a_repetition(backend, surrogate, batch):
    times = (2 * batch.knobs["weights"]).astype(int)
    times += times.sum() == 0
    rows = np.repeat(np.arange(times.size), times)
    weighted = computed(backend, batch.but(weights=times), surrogate)
    repeated = computed(backend, batch.take(rows).but(weights=None), surrogate)
    gathered = [
        np.bincount(rows, weights=copies.astype(np.float64), minlength=times.size)
        for copies in (repeated.grad, repeated.hess, repeated.hvp)
    ]
    assert_same(weighted, Answer(repeated.value, *gathered), batch.dtype, scale=weighted)


@law(batches, targets, without=st.sampled_from(("weights", "positives", "negatives")))
def test_batches_without_pairs_have_no_loss(backend, surrogate, batch, without):
    if without == "weights":
        batch = batch.but(weights=np.zeros(batch.scores.size))
    elif batch.labels.ndim == 2:
        batch.labels = batch.labels * [1.0, 0.0]  # no event
    else:
        largest = without == "negatives"
        batch.labels = np.full_like(batch.labels, np.sort(batch.labels)[-1 if largest else 0])
    answer = computed(backend, batch, surrogate)
    assert answer.value == 0.0
    for array in (answer.grad, answer.hess, answer.hvp):
        assert not array.any()
        assert array.dtype == batch.dtype


@law(batches, constant=st.sampled_from((0.0, 1.0, -3e7)))
def test_the_hessian_times_a_constant_vector_is_zero(backend, surrogate, batch, constant):
    batch.vector = np.full(batch.scores.size, constant)
    answer = computed(backend, batch, surrogate)
    assert_close(
        answer.hvp, 0 * answer.hvp, batch.dtype, scale=np.abs(answer.hess * constant).max()
    )


@law(
    targets,
    surrogate=st.sampled_from([SQUARED_HINGE, logistic()]),
    batch={"kinds": ("binary",)},
    max_fpr=st.sampled_from([None, 0.0, 0.1, 0.25, 0.5, 0.9, 1.0]),
    min_tpr=st.sampled_from([None, 0.0, 0.1, 0.25, 0.5, 0.9]),
)
def test_partial_losses_equal_the_double_sum(backend, surrogate, batch, max_fpr, min_tpr):
    batch = batch.but(max_fpr=max_fpr, min_tpr=min_tpr)
    assert_same(computed(backend, batch, surrogate), double_sum(batch, surrogate), batch.dtype)
