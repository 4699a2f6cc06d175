"""A million float32 scores at an offset of a million, against a long-double sort."""

from __future__ import annotations

import numpy as np
import pytest

from .tolerances import assert_close

N = 1_000_000
MARGIN = 1.0


def squared_hinge_by_sorting(scores, labels, margin):
    """The textbook closed form in long double: counts, sums and sums of squares below a point."""
    x = scores.astype(np.longdouble)
    x = x - x.mean()
    pos, neg = np.flatnonzero(labels), np.flatnonzero(~labels)
    pairs = np.longdouble(pos.size) * neg.size
    grad = np.empty(x.size, np.longdouble)
    loss = np.longdouble(0)
    for queries, others, sign in ((neg, pos, 1), (pos, neg, -1)):
        # Seen from a positive the axis is mirrored; t = margin + q - o either way.
        q, o = sign * x[queries], np.sort(sign * x[others])
        sums = np.concatenate(([0], np.cumsum(o)))
        squares = np.concatenate(([0], np.cumsum(o * o)))
        count = np.searchsorted(o, q + margin, side="left")
        v = q + margin
        grad[queries] = sign * 2 * (count * v - sums[count]) / pairs
        loss += (count * v * v - 2 * v * sums[count] + squares[count]).sum() / pairs / 2
    return float(loss), grad.astype(np.float64)


@pytest.mark.parametrize("share", [0.5, 0.01, 0.001])
def test_float32_at_a_large_offset(backend, share):
    rng = np.random.default_rng(30)
    labels = rng.random(N) < share
    scores = (1e6 + rng.normal(size=N) + labels).astype(np.float32)
    expected = squared_hinge_by_sorting(scores, labels, MARGIN)
    loss, grad = backend.loss_and_grad(scores, labels, margin=MARGIN)
    assert grad.dtype == np.float32
    assert_close(loss, expected[0], np.float32)
    assert_close(grad, expected[1], np.float32)


@pytest.mark.parametrize(
    ("dtype", "spread"), [(np.float32, 1.0), (np.float32, 1e-5), (np.float64, 1.0)]
)
def test_a_million_rows(backend, dtype, spread):
    rng = np.random.default_rng(31)
    labels = rng.random(N) < 0.1
    scores = (0.5 + spread * rng.normal(size=N)).astype(dtype)
    margin = 0.1 * spread
    expected = squared_hinge_by_sorting(scores, labels, margin)
    loss, grad = backend.loss_and_grad(scores, labels, margin=margin)
    assert_close(loss, expected[0], dtype)
    assert_close(grad, expected[1], dtype)
