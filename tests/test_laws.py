"""Laws that the losses obey, for every backend and every surrogate.

A law draws its surrogate along with the batch. Coverage is measured while the first law runs, which
executes the same lines as the others: measuring it makes a law take more than twice as long.
"""

from __future__ import annotations

from functools import wraps

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from everypair import surrogates

from .strategies import SMOOTH, SURROGATES, Answer, all_surrogates, batches, computed, double_sum
from .tolerances import assert_close

# A law has more examples than other properties, because it draws one of ten surrogates.
EXAMPLES = 5 * settings().max_examples // 2


def law(*, surrogate=None, **drawn):
    """Declare a property of every surrogate, or of those that `surrogate` draws."""
    surrogate = all_surrogates() if surrogate is None else surrogate

    def decorate(test):
        @wraps(test)
        def for_backend(**drawn):
            # Some backends try fewer smooth surrogates, because each one compiles new programs.
            names = getattr(drawn.get("backend"), "smooth_names", None)
            chosen = drawn["surrogate"]
            assume(names is None or chosen.is_polynomial or chosen.name in names)
            test(**drawn)

        return settings(max_examples=EXAMPLES)(given(surrogate=surrogate, **drawn)(for_backend))

    return decorate


def assert_same(got: Answer, expected: Answer, dtype, scale: Answer | None = None):
    """Compare all fields; errors are relative to `expected` or to `scale`, whichever is larger."""
    for field in ("value", "grad", "hess", "hvp"):
        size = 0.0 if scale is None else np.abs(getattr(scale, field)).max(initial=0.0)
        assert_close(getattr(got, field), getattr(expected, field), dtype, scale=size)


@law(batch=batches())
def test_equals_the_double_sum(backend, surrogate, batch):
    assert_same(computed(backend, batch, surrogate), double_sum(batch, surrogate), batch.dtype)


@pytest.mark.no_cover
@law(batch=batches())
def test_every_function_gives_the_same_loss(backend, surrogate, batch):
    knobs = {"surrogate": surrogate, **batch.knobs}
    value, grad, _ = backend.derivatives(batch.scores, batch.labels, **knobs)
    loss, same_grad = backend.loss_and_grad(batch.scores, batch.labels, **knobs)
    # The plan of a loss may differ from that of a Hessian.
    assert_close(backend.loss(batch.scores, batch.labels, **knobs), value, batch.dtype)
    assert_close(loss, value, batch.dtype)
    assert_close(same_grad, grad, batch.dtype)
    assert grad.dtype == same_grad.dtype == batch.dtype


@pytest.mark.no_cover
@law(batch=batches(), seed=st.integers(0, 2**32 - 1))
def test_the_order_of_rows_does_not_matter(backend, surrogate, batch, seed):
    order = np.random.default_rng(seed).permutation(batch.scores.size)
    here, there = (computed(backend, b, surrogate) for b in (batch, batch.take(order)))
    shuffled = Answer(here.value, here.grad[order], here.hess[order], here.hvp[order])
    assert_same(there, shuffled, batch.dtype)


@pytest.mark.no_cover
@law(batch=batches(), steps=st.integers(-1000, 1000))
def test_adding_a_constant_to_the_scores_changes_nothing(backend, surrogate, batch, steps):
    # Steps on the grid of the batch keep the shifted scores exact.
    grid = 2.0**-20 if np.abs(batch.scores).max() < 2.0**-10 else 1.0
    shifted = batch.but()
    shifted.scores = batch.scores + batch.dtype.type(steps * grid)
    assert_same(
        computed(backend, shifted, surrogate), computed(backend, batch, surrogate), batch.dtype
    )


@pytest.mark.no_cover
@law(batch=batches())
def test_negating_scores_and_swapping_labels_negates_the_gradient(backend, surrogate, batch):
    mirror = batch.but()
    mirror.scores, mirror.labels = -batch.scores, ~batch.positive
    here, there = (computed(backend, b, surrogate) for b in (batch, mirror))
    assert_same(there, Answer(here.value, -here.grad, here.hess, here.hvp), batch.dtype)


HOMOGENEOUS = {surrogates.SQUARE: 2, surrogates.SQUARED_HINGE: 2, surrogates.LINEAR_HINGE: 1}


@pytest.mark.no_cover
@law(surrogate=st.sampled_from(list(HOMOGENEOUS)), batch=batches(), power=st.integers(-10, 10))
def test_scaling_scores_and_margin_scales_the_loss(backend, surrogate, batch, power):
    c, degree = 2.0**power, HOMOGENEOUS[surrogate]
    scaled = batch.but(margin=c * batch.knobs["margin"])
    scaled.scores = batch.scores * batch.dtype.type(c)
    here, there = (computed(backend, b, surrogate) for b in (batch, scaled))
    assert_same(
        there,
        Answer(
            c**degree * here.value,
            c ** (degree - 1) * here.grad,
            c ** (degree - 2) * here.hess,
            c ** (degree - 2) * here.hvp,
        ),
        batch.dtype,
    )


@pytest.mark.no_cover
@law(batch=batches(weights=True, max_size=30))
def test_an_integer_weight_is_a_repetition(backend, surrogate, batch):
    times = (2 * batch.knobs["weights"]).astype(int)
    if times.sum() == 0:
        times += 1
    rows = np.repeat(np.arange(times.size), times)
    weighted = computed(backend, batch.but(weights=times), surrogate)
    repeated = computed(backend, batch.take(rows).but(weights=None), surrogate)

    def gathered(copies):
        return np.bincount(rows, weights=copies.astype(np.float64), minlength=times.size)

    assert_same(
        weighted,
        Answer(
            repeated.value, gathered(repeated.grad), gathered(repeated.hess), gathered(repeated.hvp)
        ),
        batch.dtype,
        scale=weighted,
    )


@pytest.mark.no_cover
@law(batch=batches(groups=True))
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
@law(batch=batches())
def test_the_mean_is_the_sum_over_the_pair_weight(backend, surrogate, batch):
    w = np.ones(batch.scores.size) if batch.knobs["weights"] is None else batch.knobs["weights"]
    g = np.zeros(batch.scores.size) if batch.knobs["groups"] is None else batch.knobs["groups"]
    pair_weight = sum(
        w[batch.positive & (g == group)].sum() * w[~batch.positive & (g == group)].sum()
        for group in np.unique(g)
    )
    mean, total = (
        computed(backend, batch.but(reduction=reduction), surrogate)
        for reduction in ("mean", "sum")
    )
    for field in ("value", "grad", "hess", "hvp"):
        assert_close(
            getattr(mean, field) * (pair_weight or 1.0), getattr(total, field), batch.dtype
        )


@pytest.mark.no_cover
@law(batch=batches(), positive=st.booleans())
def test_one_class_gives_zero_loss_and_gradient(backend, surrogate, batch, positive):
    batch.labels = np.full(batch.scores.size, positive)
    answer = computed(backend, batch, surrogate)
    assert answer.value == 0.0
    for array in (answer.grad, answer.hess, answer.hvp):
        assert not array.any()
        assert array.dtype == batch.dtype


@pytest.mark.no_cover
@law(batch=batches())
def test_weights_of_zero_give_zero_loss_and_gradient(backend, surrogate, batch):
    answer = computed(backend, batch.but(weights=np.zeros(batch.scores.size)), surrogate)
    assert answer.value == 0.0
    assert not np.any([answer.grad, answer.hess, answer.hvp])


@pytest.mark.no_cover
@law(batch=batches(weights=False, groups=False))
def test_the_shortfall_of_tied_scores_is_the_margin(backend, surrogate, batch):
    batch = batch.but(reduction="mean")
    batch.scores = np.full_like(batch.scores, batch.scores[0])
    batch.labels = np.arange(batch.scores.size) % 2
    answer, margin = computed(backend, batch, surrogate), batch.knobs["margin"]
    n_pos, n_neg = batch.labels.sum(), (1 - batch.labels).sum()
    slope = float(surrogate.slope(margin))
    assert_close(answer.value, surrogate.value(margin), batch.dtype)
    assert_close(
        answer.grad, np.where(batch.labels == 1, -slope / n_pos, slope / n_neg), batch.dtype
    )


@pytest.mark.no_cover
@law(batch=batches())
def test_gradient_and_hessian_product_sum_to_zero(backend, surrogate, batch):
    answer = computed(backend, batch, surrogate)
    for array in (answer.grad, answer.hvp):
        assert_close(array.sum(dtype=np.float64), 0.0, batch.dtype, scale=np.abs(array).sum())


@pytest.mark.no_cover
@law(batch=batches(), i=st.integers(0, 59), j=st.integers(0, 59))
def test_the_hessian_is_symmetric_and_hess_is_its_diagonal(backend, surrogate, batch, i, j):
    n = batch.scores.size
    i, j = i % n, j % n
    size = 0.0
    columns = []
    for k in (i, j):
        batch.vector = np.eye(n)[k]
        answer = computed(backend, batch, surrogate)
        columns.append(answer.hvp)
        size = max(size, np.abs(answer.hess).max())
        assert_close(answer.hvp[k], answer.hess[k], batch.dtype, scale=size)
    assert_close(columns[0][j], columns[1][i], batch.dtype, scale=size)


@pytest.mark.no_cover
@law(batch=batches(), constant=st.sampled_from((0.0, 1.0, -3e7)))
def test_the_hessian_times_a_constant_vector_is_zero(backend, surrogate, batch, constant):
    batch.vector = np.full(batch.scores.size, constant)
    answer = computed(backend, batch, surrogate)
    assert_close(
        answer.hvp, 0 * answer.hvp, batch.dtype, scale=np.abs(answer.hess * constant).max()
    )


@given(batch=batches())
def test_auc_equals_the_share_of_pairs(backend, batch):
    data = {k: batch.knobs[k] for k in ("weights", "groups")}
    w = np.ones(batch.scores.size) if data["weights"] is None else data["weights"]
    g = np.zeros(batch.scores.size) if data["groups"] is None else data["groups"]
    pos, neg = np.flatnonzero(batch.positive), np.flatnonzero(~batch.positive)
    pair = w[pos][:, None] * w[neg] * (g[pos][:, None] == g[neg])
    above = batch.scores[pos][:, None] > batch.scores[neg]
    tied = batch.scores[pos][:, None] == batch.scores[neg]
    if pair.sum() == 0:
        with pytest.raises(ValueError, match="auc must have both classes"):
            backend.auc(batch.scores, batch.labels, **data)
        return
    assert_close(
        backend.auc(batch.scores, batch.labels, **data),
        (pair * (above + tied / 2)).sum() / pair.sum(),
        np.float64,
    )


def test_the_generators_reach_every_kind_of_pair():
    reached = set()

    @law(batch=batches())
    def look(batch, surrogate):
        reached.add(surrogate.name)
        pos, neg = batch.scores[batch.positive], batch.scores[~batch.positive]
        if pos.size == 0 or neg.size == 0:
            reached.add("one class")
            return
        shortfall = batch.knobs["margin"] - (pos.astype(float)[:, None] - neg)
        kinds = {
            "active": shortfall > 0,
            "inactive": shortfall < 0,
            "on the knot": shortfall == 0,
            "on a shifted knot": shortfall == 0.5,
            "tied": pos[:, None] == neg,
        }
        reached.update(kind for kind, where in kinds.items() if where.any())
        reached.update(knob for knob in ("weights", "groups") if batch.knobs[knob] is not None)

    look()
    assert reached == {
        "active",
        "inactive",
        "on the knot",
        "on a shifted knot",
        "tied",
        "one class",
        "weights",
        "groups",
        *(surrogate.name for surrogate in (*SURROGATES, *SMOOTH)),
    }
