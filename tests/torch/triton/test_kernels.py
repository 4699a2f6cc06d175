"""Pairs and buckets against the double sum, through `pair_loss`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import everypair as ep
from everypair.torch import pair_loss
from everypair.torch._dispatch import forced
from everypair.torch.triton import buckets, plans, sorted_rows
from everypair.torch.triton.cells import ONE
from everypair.torch.triton.common.workspace import CELLS
from everypair.torch.triton.scan import GRAD_TOLERANCE, LOSS_TOLERANCE

from .device import DEVICE
from .sizes import pairs_up_to


@pytest.fixture(autouse=True)
def on_triton():
    with forced("triton"):
        yield


@pytest.fixture
def buckets_only():
    with pairs_up_to(0):
        yield


def derivatives(scores, labels, **knobs):
    leaf = torch.as_tensor(scores, device=DEVICE).requires_grad_()
    loss = pair_loss(leaf, torch.as_tensor(labels, device=DEVICE), **knobs)
    loss.sum().backward()
    return loss.detach().cpu().numpy(), leaf.grad.cpu()


def assert_right(scores, labels, rtol=1e-6, grad_rtol=1e-6, **knobs):
    value, grad = derivatives(scores, labels, **knobs)
    expected, expected_grad = ep.pair_loss_and_grad(
        np.asarray(scores, np.float64), np.asarray(labels), **knobs
    )
    assert value == pytest.approx(expected, rel=rtol)
    assert_grad_close(grad, expected_grad, grad_rtol)


def assert_grad_close(grad, expected, rtol=1e-6):
    """Compare gradients, relative to the largest one."""
    np.testing.assert_allclose(grad.double(), expected, rtol=0, atol=rtol * abs(expected).max())


def scores_of(kind, n=700, share=0.4):
    rng = np.random.default_rng(3)
    labels = rng.random(n) < share
    labels[:2] = True, False
    s = rng.normal(size=n) + labels
    kinds = {
        "normal": s,
        "offset": s + 1000,
        "saturated": 1 / (1 + np.exp(-20 * s)),
        "ties": np.round(4 * s) / 4,
        "two values": np.where(rng.random(n) < 0.5, 0.25, 0.75),
        "cauchy": np.tan(s),
        "separated": s + 3 * labels,
        "decades": np.sign(s) * 10 ** rng.uniform(-15, 15, n),
        "huge": 1e18 * s,
    }
    return kinds[kind].astype(np.float32), labels


@pytest.mark.usefixtures("buckets_only")
@pytest.mark.parametrize(
    "kind",
    ["normal", "offset", "saturated", "ties", "two values", "cauchy", "separated", "decades",
     "huge"],
)  # fmt: skip
def test_buckets_keep_their_error_bounds(kind):
    scores, labels = scores_of(kind)
    rounding = 2.0**-23  # of the value and of the line that gives a gradient, in float32
    assert_right(
        scores,
        labels,
        rtol=LOSS_TOLERANCE.value + rounding,
        grad_rtol=GRAD_TOLERANCE.value + rounding,
        margin=0.1 if kind == "offset" else 1.0,
    )


def test_integer_sums_fit():
    cells, one = CELLS.value, ONE.value
    assert buckets.MOST_ROWS * cells * one < 2**63  # sum of places
    assert buckets.ROWS_PER_PROGRAM < 2**20  # rows of a packed count
    assert buckets.ROWS_PER_PROGRAM * one <= 2**44  # fractions of a packed count
    assert cells < 2**12  # heavy cells, in twelve bits for each tolerance
    assert plans.MOST_ROWS + 4 * sorted_rows.CHUNK * sorted_rows.CHUNKS < 2**31  # offsets of rows


@pytest.mark.usefixtures("buckets_only")
def test_more_heavy_cells_than_can_be_split():
    # Most negatives have a very small gradient: accuracy relative to it would split every cell.
    rng = np.random.default_rng(0)
    n_neg, n_pos = 400_000, 12_000
    near = 1e-4 * rng.exponential(size=n_neg)
    negatives = np.where(rng.random(n_neg) < 0.99, near, rng.random(n_neg))
    scores = np.r_[rng.random(n_pos), negatives].astype(np.float32)
    assert_right(scores, np.arange(n_pos + n_neg) < n_pos, margin=0.0)


def test_too_many_rows_are_left_to_torch_operations(monkeypatch):
    monkeypatch.setattr(plans, "MOST_ROWS", 0)
    scores, labels = scores_of("normal", n=50)
    assert_right(scores, labels, surrogate="huber_hinge")
