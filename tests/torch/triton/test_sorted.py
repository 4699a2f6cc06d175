"""`by_sort` and `by_moments` against the double sum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from everypair import surrogates
from everypair.surrogates import Surrogate, Term
from everypair.torch.triton.common.launch import INTERPRETED, Job
from everypair.torch.triton.moments import by_moments
from everypair.torch.triton.sorted_rows import by_sort

from ...strategies import SURROGATES, Batch, double_sum
from ...tolerances import assert_close
from .device import DEVICE
from .sizes import FULL_SIZES, small_blocks

QUADRATIC = Surrogate("quadratic", (Term(0.5, -0.25, 1.0), Term(0.25, 0.5, -0.75)))
VALLEY = Surrogate("valley", (Term(0.0, -2e6, 1.0, knot=0.0),))
N = 20  # rows: several chunks, blocks, programs and steps of the small sizes
PLANS = ((by_sort, surrogates.SQUARED_HINGE), (by_sort, surrogates.SQUARE), (by_moments, QUADRATIC))


@pytest.fixture(autouse=True, scope="module")
def several_blocks():
    with small_blocks():
        yield


def answered(
    plan, scores, labels, terms, *, weights=None, vector=None, mean=True, grad=True, hess=True,
    one_class=None,
):  # fmt: skip
    scores, labels, weights, vector = (
        None if given is None else torch.as_tensor(given).to(DEVICE)
        for given in (scores, labels, weights, vector)
    )
    if labels.dtype is torch.bool:
        labels = labels.view(torch.uint8)
    dtype = torch.float64 if scores.dtype is torch.float64 else torch.float32

    def room(shape, *, asked=True, dtype=dtype):
        return torch.full(shape, 123.0, dtype=dtype, device=DEVICE) if asked else None

    shape = scores.shape
    job = Job(
        scores, labels, weights, vector, terms, mean, missing=False, one_class=one_class,
        value=room(shape[:-1]),
        pair_weight=room(shape[:-1], asked=one_class is None, dtype=torch.float64),
        grad=room(shape, asked=grad), hess=room(shape, asked=hess),
        hvp=room(shape, asked=vector is not None),
    )  # fmt: skip
    plan(job)
    return job


def assert_right(plan, batch, surrogate):
    """Ask for all; for the hvp, too, unless the batch has no vector."""
    knobs = {"reduction": "mean", "margin": 1.0, "weights": None, **batch.knobs}
    job = answered(
        plan, batch.scores, batch.labels, surrogate.at_knots(knobs["margin"]),
        weights=knobs["weights"], vector=batch.vector, mean=knobs["reduction"] == "mean",
    )  # fmt: skip
    asked = batch if batch.vector is not None else replace(batch, vector=0.0 * batch.scores)
    expected = double_sum(asked, surrogate)
    assert_close(job.value.cpu(), expected.value, batch.dtype)
    assert_close(job.grad.cpu(), expected.grad, batch.dtype)
    assert_close(job.hess.cpu(), expected.hess, batch.dtype)
    if batch.vector is not None:
        assert_close(job.hvp.cpu(), expected.hvp, batch.dtype)
    w = np.ones(len(batch.scores)) if knobs["weights"] is None else knobs["weights"]
    pairs = w[batch.positive].sum() * w[~batch.positive].sum()
    assert_close(job.pair_weight.cpu(), pairs, np.float64)


def batch_of(scores, labels, dtype=np.float64, weights=None, **knobs):
    rng = np.random.default_rng(5)
    knobs = {"weights": weights, "groups": None, **knobs}
    return Batch(np.asarray(scores, dtype), labels, rng.normal(size=len(scores)), knobs)


def normal(n=N, share=0.4, seed=3):
    rng = np.random.default_rng(seed)
    labels = rng.random(n) < share
    labels[:2] = True, False
    return rng.normal(size=n) + labels, labels, rng


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda surrogate: surrogate.name)
def test_weights_of_all_digits(surrogate, dtype):
    scores, labels, rng = normal()
    assert_right(by_sort, batch_of(scores, labels, dtype, weights=rng.random(N)), surrogate)


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("surrogate", SURROGATES[1:3], ids=lambda surrogate: surrogate.name)
def test_one_term_without_a_vector(surrogate, offset):
    # Nothing cancels, so float64 sums are accurate enough for float64 scores.
    scores, labels, rng = normal()
    batch = batch_of(scores / 10 + offset, labels, weights=rng.random(N), margin=0.1)
    assert_right(by_sort, replace(batch, vector=None), surrogate)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("plan", "surrogate"), PLANS)
def test_an_offset_far_beyond_the_margin(plan, surrogate, dtype):
    scores, labels, _ = normal()
    assert_right(plan, batch_of(scores / 10 + 1e6, labels, dtype, margin=0.1), surrogate)


@pytest.mark.parametrize(
    ("spread", "dtype"),
    [(1e3, np.float64), (1e7, np.float64), (1e12, np.float64), (1e12, np.float32)],
)
def test_terms_that_cancel(spread, dtype):
    scores, labels, rng = normal()
    batch = batch_of(scores * spread, labels, dtype, weights=rng.random(N))
    assert_right(by_sort, batch, surrogates.HUBER_HINGE)


def test_distances_whose_squares_overflow():
    scores, labels, _ = normal()
    assert_right(by_sort, batch_of(scores * 1e200, labels), surrogates.LINEAR_HINGE)


def test_coefficients_that_cancel():
    # All pairs lie near the minimum of the term, on a grid where the double sum is exact.
    scores, labels, rng = normal()
    scores = np.round(scores * 8) / 8 + np.where(labels, 0.0, 1e6)
    batch = batch_of(scores, labels, weights=rng.random(N), margin=0.0)
    assert_right(by_sort, replace(batch, vector=None), VALLEY)


@pytest.mark.parametrize(("plan", "surrogate"), [*PLANS, (by_moments, surrogates.SQUARE)])
def test_heavy_rows_near_and_light_ones_far(plan, surrogate):
    # Moments about a light row far away would lose the digits of the heavy rows.
    rng = np.random.default_rng(3)
    near = np.arange(N) < N // 2
    labels = ~near | (np.arange(N) % 2 == 0)
    scores = np.where(near, 1e-8, 1.0) * rng.normal(size=N)
    weights = np.where(near & labels, 1e8, 1.0)
    batch = batch_of(scores, labels, weights=weights, margin=0.0)
    assert_right(plan, replace(batch, vector=None), surrogate)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("plan", "surrogate"), PLANS)
def test_rows_without_weight_cost_no_digits(plan, surrogate, dtype):
    scores, labels, rng = normal()
    weights = rng.random(N)
    rows = [0, 1, 9, 15, 16]
    weights[rows] = 0.0
    scores[rows] = 1e37, -1e37, 1e30, -1e30, 0.5
    batch = batch_of(scores, labels, dtype, weights=weights)
    batch.vector[0] = 1e6
    assert_right(plan, batch, surrogate)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_gap_without_pairs_costs_no_digits(dtype):
    scores, labels, _ = normal()
    scores[labels & (scores > 1.5)] = 1e37  # positives that no negative comes near
    scores[~labels & (scores < -1.0)] = -1e37
    assert_right(by_sort, batch_of(scores, labels, dtype), surrogates.SQUARED_HINGE)


@pytest.mark.parametrize(("plan", "surrogate"), PLANS)
def test_only_what_is_asked_is_computed(plan, surrogate):
    scores, labels, _ = normal()
    terms = surrogate.at_knots(1.0)
    job = answered(plan, scores, labels, terms, grad=False, hess=False)
    assert job.grad is job.hvp is job.hess is None
    expected = double_sum(batch_of(scores, labels), surrogate)
    assert_close(job.value.cpu(), expected.value, np.float64)


@pytest.mark.skipif(INTERPRETED, reason="blocks of full size take long to interpret")
@pytest.mark.parametrize(("plan", "surrogate"), PLANS)
def test_blocks_of_full_size(plan, surrogate):
    with pytest.MonkeyPatch.context() as patch:
        for module, sizes in FULL_SIZES.items():
            for name, size in sizes.items():
                patch.setattr(module, name, size)
        assert_right(plan, batch_of(*normal(n=9000)[:2]), surrogate)
