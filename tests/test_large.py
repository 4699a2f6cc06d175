"""A million scores, far from zero or close together, against sorting in long double."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from .sort_oracle import squared_hinge_by_sorting
from .tolerances import assert_close

N = 1_000_000


@cache
def sample(share, dtype, offset, spread, lead, margin):
    rng = np.random.default_rng(30)
    labels = rng.random(N) < share
    scores = (offset + spread * rng.normal(size=N) + lead * labels).astype(dtype)
    return scores, labels, squared_hinge_by_sorting(scores, labels, margin)


@pytest.mark.parametrize("share", [0.5, 0.01, 0.001])
def test_float32_at_a_large_offset(backend, share):
    scores, labels, expected = sample(share, np.float32, 1e6, 1.0, 1.0, 1.0)
    loss, grad = backend.loss_and_grad(scores, labels)
    assert grad.dtype == np.float32
    assert_close(loss, expected.value, np.float32)
    assert_close(grad, expected.grad, np.float32)


@pytest.mark.parametrize(
    ("dtype", "spread"), [(np.float32, 1.0), (np.float32, 1e-5), (np.float64, 1.0)]
)
def test_a_million_rows(backend, dtype, spread):
    margin = 0.1 * spread
    scores, labels, expected = sample(0.1, dtype, 0.5, spread, 0.0, margin)
    loss, grad = backend.loss_and_grad(scores, labels, margin=margin)
    assert_close(loss, expected.value, dtype)
    assert_close(grad, expected.grad, dtype)
