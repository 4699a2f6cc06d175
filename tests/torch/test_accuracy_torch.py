"""The difficult inputs of `test_adversarial`, computed by torch operations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import everypair as ep
from everypair import surrogates
from everypair.torch import _arrays, pair_loss
from everypair.torch._dispatch import forced

from ..extreme_cases import (
    ALONE,
    LABELS,
    ON_THE_KNOT,
    SCORES,
    WEIGHTS,
    assert_exact,
    assert_exact_beside_outliers,
    assert_exact_groups,
    assert_exact_product,
)
from ..strategies import BUMPY, SURROGATES, Batch, double_sum
from ..test_adversarial import CASES, batch_of, expected_of
from ..tolerances import assert_close
from .backends import TorchBackend

OPERATIONS = TorchBackend("torch operations")


@pytest.mark.parametrize("surrogate", ["squared_hinge", "square", "logistic"])
@pytest.mark.parametrize("pairs", ["binary", "ordered", "survival"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["torch", "torch operations"])
def test_products_with_vectors_and_weights_of_any_size(name, dtype, pairs, surrogate):
    assert_exact_product(TorchBackend(name), dtype, pairs, surrogate, of_gradient=True)


@pytest.mark.parametrize("size", [1e12, -1e12, 1e26])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_distant_score_of_the_own_class_costs_no_digits(dtype, size):
    assert_exact_beside_outliers(OPERATIONS, dtype, size)


@pytest.mark.parametrize("surrogate", ["square", "squared_hinge", "logistic", "exponential"])
@pytest.mark.parametrize("pairs", ["binary", "ordered", "survival"])
def test_groups_of_very_different_weight_leave_each_other_alone(pairs, surrogate):
    assert_exact_groups(OPERATIONS, np.float64, pairs, surrogate, 2.0**60)


@pytest.mark.parametrize("name", ["torch", "torch operations"])
def test_a_partial_auc_of_groups_of_very_different_weight(name):
    rng = np.random.default_rng(7)
    groups = np.arange(LABELS.size) % 3
    scores, labels = rng.normal(size=LABELS.size), np.arange(LABELS.size) // 3 % 2
    knobs = {"weights": 2.0 ** (60.0 * (groups - 1)), "groups": groups, "max_fpr": 0.3}
    for reduction in ("mean", "sum"):
        expected = ep.pair_loss_and_grad(scores, labels, reduction=reduction, **knobs)[1]
        grad = TorchBackend(name).loss_and_grad(scores, labels, reduction=reduction, **knobs)[1]
        for group in range(3):
            rows = groups == group
            assert_close(grad[rows], expected[rows], np.float64)


def check(batch, surrogate, expected, curvature=0.0):
    knobs = {"surrogate": surrogate, **batch.knobs}
    loss, grad = OPERATIONS.loss_and_grad(batch.scores, batch.labels, **knobs)
    hvp = OPERATIONS.hvp(batch.scores, batch.labels, batch.vector, **knobs)
    assert_close(loss, expected.value, batch.dtype)
    assert_close(grad, expected.grad, batch.dtype)
    assert_close(hvp, expected.hvp, batch.dtype, scale=curvature * np.abs(batch.vector).max())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda s: s.name)
@pytest.mark.parametrize("case", [case for case in CASES if case != "thirty decades"])
def test_difficult_inputs(case, surrogate, dtype):
    batch = batch_of(case, 500, 0.2, dtype)
    # Curvatures of several terms may cancel, as those of the Huber hinge do far from its knots.
    smaller = min(batch.labels.sum(), (~batch.labels).sum())
    curvature = 2.0 / smaller if len(surrogate.terms) > 1 else 0.0
    check(batch, surrogate, expected_of(case, 500, 0.2, dtype, 1.0, surrogate), curvature)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["square", "squared_hinge", "linear_hinge"])
def test_thirty_decades(name, dtype):
    batch = batch_of("thirty decades", 500, 0.2, dtype)
    surrogate = surrogates.get(name)
    check(batch, surrogate, expected_of("thirty decades", 500, 0.2, dtype, 1.0, surrogate))


@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda s: s.name)
def test_many_groups_and_weights_of_many_sizes(surrogate):
    rng = np.random.default_rng(24)
    n = 600
    groups = rng.integers(0, 150, n)
    scores = np.round(rng.normal(size=n) * 1024) / 1024 + np.round(1000.0 * np.sin(groups))
    weights = 10.0 ** rng.uniform(-6, 6, n) * (rng.random(n) < 0.8)
    knobs = {"margin": 1.0, "groups": groups, "weights": weights}
    batch = Batch(scores, rng.random(n) < 0.4, rng.normal(size=n), knobs)
    check(batch, surrogate, double_sum(batch, surrogate))


@pytest.mark.parametrize("groups", [[0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_wide_group_does_not_change_a_narrow_one(groups, dtype):
    tiny = 2.0**-20
    loss, grad = OPERATIONS.loss_and_grad(
        np.array([0.0, 1e9, -5.0, 0.0, tiny, 2 * tiny], dtype),
        [1, 1, 0, 1, 1, 0],
        groups=groups,
        margin=0.0,
        reduction="sum",
    )
    assert_close(loss, 5 * tiny**2, dtype)
    assert_close(grad, [0.0, 0.0, 0.0, -4 * tiny, -2 * tiny, 6 * tiny], dtype)


@pytest.mark.parametrize("groups", [[0, 0, 1, 1], [1, 1, 0, 0]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_heavy_group_does_not_change_a_light_one(dtype, groups):
    scores = np.array([5.0, 0.0, 0.0, 0.0], dtype)
    knobs = {"groups": groups, "weights": [1e12, 1e12, 1e-6, 3e-6], "reduction": "sum"}
    loss, grad = OPERATIONS.loss_and_grad(scores, [1, 0, 1, 0], **knobs)
    assert_close(loss, 3e-12, dtype)
    assert_close(grad, [0.0, 0.0, -6e-12, 6e-12], dtype)


def test_the_margin_counts_at_large_scores():
    # At 2^60 adding a margin of 1 to a score is lost to rounding; the shortfall is 1 all the same.
    scores = np.array([0.0, 2.0**60, 2.0**60])
    loss, grad = OPERATIONS.loss_and_grad(
        scores, [1, 1, 0], groups=[0, 1, 1], surrogate="linear_hinge"
    )
    assert loss == 1.0
    assert grad.tolist() == [0.0, -1.0, 1.0]


@pytest.mark.parametrize("name", ["squared_hinge", "huber_hinge"])
def test_single_precision_is_compensated_where_there_is_no_double(monkeypatch, name):
    monkeypatch.setattr(_arrays, "_work_dtype", lambda _: torch.float32)
    batch = batch_of("offset", 500, 0.2, np.float32)
    knobs = {"surrogate": name, **batch.knobs}
    want = expected_of("offset", 500, 0.2, np.float32, 1.0, surrogates.get(name))
    loss, grad = OPERATIONS.loss_and_grad(batch.scores, batch.labels, **knobs)
    assert_close(loss, want.value, np.float32)
    assert_close(grad, want.grad, np.float32)


def test_tasks_are_independent():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    labels = torch.rand(50, 3, generator=generator) < 0.3
    with forced("operations"):
        together = pair_loss(scores, labels, surrogate=BUMPY, reduction="none")
    alone = [pair_loss(scores[:, k], labels[:, k], surrogate=BUMPY).item() for k in range(3)]
    assert_close(together.numpy(), alone, np.float64)


@pytest.mark.parametrize("case", {**SCORES, **WEIGHTS})
def test_scores_margins_and_weights_of_any_size(case):
    scores, knobs = {**SCORES, **WEIGHTS}[case]
    assert_exact(OPERATIONS, scores, LABELS, **knobs)


@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda s: s.name)
@pytest.mark.parametrize("case", ALONE)
def test_a_row_of_weight_zero_changes_nothing(case, surrogate):
    scores, labels, weights = ALONE[case]
    assert_exact(OPERATIONS, scores, labels, weights=weights, surrogate=surrogate)


@pytest.mark.parametrize("case", ON_THE_KNOT)
def test_pairs_on_the_knot_are_decided_exactly(case):
    scores, labels, margin, surrogate = ON_THE_KNOT[case]
    assert_exact(OPERATIONS, scores, labels, margin=margin, surrogate=surrogate)


@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda s: s.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("extras", [False, True], ids=["plain", "weights, groups and vector"])
def test_no_value_is_read_back_from_the_device(surrogate, dtype, extras):
    # Fake tensors have a device but no values: reading one back raises, and so does mixing devices.
    with FakeTensorMode():
        scores = torch.zeros(3, 40, dtype=dtype, device="meta")
        groups = torch.zeros(3, 40, dtype=torch.int64, device="meta")
        found = _arrays.evaluate(
            scores, scores > 0.0, scores if extras else None, groups if extras else None,
            scores if extras else None, surrogate.at_knots(1.0), mean=True, grad=True, hess=True,
        )  # fmt: skip
    assert found.value.shape == (3,)
    assert found.grad.shape == found.hess.shape == (3, 40)
    assert found.grad.device.type == "meta"
