"""The extreme cases, and smooth surrogates in every entry, computed by torch operations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import everypair as ep
from everypair import surrogates
from everypair.torch import _arrays, pair_derivatives
from everypair.torch._dispatch import forced

from ..extreme_cases import LABELS, assert_exact_product, shaped
from ..fuzz.oracle import exact
from ..strategies import SURROGATES
from ..test_extremes import (
    test_a_distant_score_of_the_own_class_costs_no_digits,  # noqa: F401
    test_groups_of_very_different_weight_leave_each_other_alone,  # noqa: F401
    test_results_are_exact,  # noqa: F401
)
from ..test_smooth import FITTED, NAMES, hostile_batches
from ..tolerances import assert_close
from .backends import TorchBackend

OPERATIONS = TorchBackend("torch operations")


@pytest.fixture(scope="module")
def backend():
    return OPERATIONS


@pytest.mark.parametrize("surrogate", ["squared_hinge", "square", "logistic"])
@pytest.mark.parametrize("pairs", ["binary", "ordered", "survival"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["torch", "torch operations"])
def test_products_with_vectors_and_weights_of_any_size(name, dtype, pairs, surrogate):
    assert_exact_product(TorchBackend(name), dtype, pairs, surrogate, of_gradient=True)


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


@pytest.mark.parametrize("name", ["squared_hinge", "huber_hinge"])
def test_single_precision_is_compensated_where_there_is_no_double(monkeypatch, name):
    monkeypatch.setattr(_arrays, "_work_dtype", lambda _: torch.float32)
    batch = shaped("offset", 500, 0.2, np.float32, surrogate=surrogates.get(name))
    want = exact(batch)
    loss, grad = OPERATIONS.loss_and_grad(batch.scores, batch.labels, **batch.options)
    assert_close(loss, want.value, np.float32)
    assert_close(grad, want.grad, np.float32)


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


def assert_right_in_every_entry(name, dtype, tolerance, smallest, weighted=True):
    for scores, labels, weights, groups in hostile_batches(dtype):
        if name == "exponential" and np.ptp(scores) > 60.0:
            continue
        data = {"weights": weights, "groups": groups} if weighted else {"groups": groups}
        value, grad = ep.naive.pair_loss_and_grad(
            scores.astype(float), labels, surrogate=name, **data
        )
        tensors = {key: torch.tensor(array) for key, array in data.items()}
        with forced("operations"):
            found = pair_derivatives(
                torch.tensor(scores), torch.tensor(labels), surrogate=name, **tensors
            )
        seen = np.abs(grad) > smallest
        ratio = found.grad.numpy()[seen] / grad[seen]
        assert np.abs(ratio - 1.0).max(initial=0.0) <= tolerance
        assert found.value.item() == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_torch_operations_are_right_in_every_entry(name):
    assert_right_in_every_entry(name, np.float32, 1e-6, 1e-37)
    assert_right_in_every_entry(name, np.float64, 1e-12, 1e-290)


@pytest.mark.parametrize("name", FITTED)
def test_float32_arithmetic_is_enough(name, monkeypatch):
    # As on devices without float64.
    monkeypatch.setattr(_arrays, "_work_dtype", lambda _: torch.float32)
    assert_right_in_every_entry(name, np.float32, 1e-6, 1e-35, weighted=False)
