"""Pairs and buckets against the double sum, through `pair_loss`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import everypair as ep
from everypair.torch import pair_loss
from everypair.torch._dispatch import evaluate, forced
from everypair.torch._options import LossOptions
from everypair.torch.triton import buckets, plans, sorted_rows
from everypair.torch.triton.cells import ONE
from everypair.torch.triton.common.launch import INTERPRETED
from everypair.torch.triton.common.workspace import CELLS
from everypair.torch.triton.scan import GRAD_TOLERANCE, LOSS_TOLERANCE

from ...strategies import SURROGATES, batches, double_sum
from ...tolerances import assert_close
from .sizes import pairs_up_to

DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter computes with NumPy, which warns of overflow and NaN; a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")


@pytest.fixture(autouse=True)
def on_triton():
    with forced("triton"):
        yield


@pytest.fixture
def buckets_only():
    with pairs_up_to(0):
        yield


@pytest.fixture(params=[0, 10**9], ids=["buckets", "pairs"])
def either_plan(request):
    with pairs_up_to(request.param):
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


@settings(max_examples=20)
@given(batch=batches(groups=False), surrogate=st.sampled_from(SURROGATES))
def test_pair_by_pair_equals_the_double_sum(batch, surrogate):
    weights = batch.knobs["weights"]
    knobs = {**batch.knobs, "weights": None, "groups": None, "surrogate": surrogate}
    if weights is not None:
        knobs["weights"] = torch.tensor(weights, device=DEVICE)
    leaf = torch.tensor(batch.scores, device=DEVICE, requires_grad=True)
    labels = torch.tensor(np.asarray(batch.labels), device=DEVICE)
    loss = pair_loss(leaf, labels, **knobs)
    (grad,) = torch.autograd.grad(loss, leaf, create_graph=True)
    vector = torch.tensor(batch.vector, device=DEVICE).to(grad.dtype)
    (hvp,) = torch.autograd.grad(grad, leaf, vector)
    expected = double_sum(batch, surrogate)
    assert_close(loss.item(), expected.value, batch.dtype)
    assert_close(grad.detach().cpu().numpy(), expected.grad, batch.dtype)
    assert_close(hvp.cpu().numpy(), expected.hvp, batch.dtype)


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


@pytest.mark.usefixtures("buckets_only")
def test_buckets_with_few_positives():
    assert_right(*scores_of("normal", share=0.01))


@pytest.mark.usefixtures("buckets_only")
def test_buckets_without_active_pairs():
    scores, labels = scores_of("normal", n=50)
    for value, grad in (
        derivatives(scores + 100 * labels, labels),  # every pair is beyond the margin
        derivatives(scores, np.ones(50)),
    ):
        assert value == 0.0
        assert not grad.any()


@pytest.mark.usefixtures("buckets_only")
def test_buckets_of_several_tasks():
    columns = [scores_of(kind, n=300) for kind in ("normal", "saturated")]
    scores, labels = (np.stack(part, 1) for part in zip(*columns, strict=True))
    labels[:, 1] |= True
    value, grad = derivatives(scores, labels, reduction="none")
    expected, expected_grad = ep.pair_loss_and_grad(scores[:, 0].astype(np.float64), labels[:, 0])
    assert value == pytest.approx([expected, 0.0], rel=1e-6)
    assert_grad_close(grad[:, 0], expected_grad)
    assert not grad[:, 1].any()


@pytest.mark.usefixtures("either_plan")
def test_rows_without_a_label_are_left_out():
    scores, labels = scores_of("normal", n=300)
    labels = labels.astype(np.float32)
    labels[::7] = np.nan
    value, grad = derivatives(scores[:, None], labels[:, None])
    known = ~np.isnan(labels)
    expected, expected_grad = ep.pair_loss_and_grad(scores[known].astype(np.float64), labels[known])
    assert value == pytest.approx(expected, rel=1e-6)
    assert_grad_close(grad[known, 0], expected_grad)
    assert not grad[~known].any()
    value, grad = derivatives(scores[:, None], np.where(labels == 1, np.nan, labels)[:, None])
    assert value == 0.0
    assert not grad.any()


@pytest.mark.usefixtures("either_plan")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_scores(dtype):
    scores, labels = scores_of("normal", n=200)
    scores = torch.tensor(scores).to(dtype)
    value, grad = derivatives(scores.clone(), labels)
    expected, expected_grad = ep.pair_loss_and_grad(scores.double().numpy(), labels)
    assert grad.dtype is dtype
    assert value == pytest.approx(expected, rel=1e-6)
    assert_grad_close(grad, expected_grad, torch.finfo(dtype).eps)


@pytest.mark.usefixtures("either_plan")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_not_finite_give_nan(bad):
    scores, labels = scores_of("normal", n=60)
    scores[7] = bad
    value, grad = derivatives(scores, labels, check=False)
    assert np.isnan(value)
    assert grad.isnan().all()


@pytest.mark.usefixtures("either_plan")
def test_batches_of_one_class_are_counted():
    counter = torch.zeros((), dtype=torch.int64, device=DEVICE)
    terms = ep.surrogates.SQUARED_HINGE.at_knots(1.0)
    options = LossOptions(terms, check=False)
    scores = torch.randn(30, device=DEVICE)
    for labels in (torch.ones(30), torch.arange(30) % 2, torch.zeros(30)):
        result = evaluate(
            scores, labels.to(DEVICE), None, None, options, grad=True, one_class=counter
        )
        assert result.pair_weight is None
    assert counter.item() == 2


def test_too_many_rows_are_left_to_torch_operations(monkeypatch):
    monkeypatch.setattr(plans, "MOST_ROWS", 0)
    scores, labels = scores_of("normal", n=50)
    assert_right(scores, labels, surrogate="huber_hinge")
