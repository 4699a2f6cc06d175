"""What every plan of the Triton kernels does with tasks, missing labels and bad scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from everypair import naive
from everypair.arrays import levels
from everypair.torch import PairLoss, _arrays, pair_derivatives, pair_loss
from everypair.torch._dispatch import forced

from ...tolerances import assert_close
from .device import DEVICE, tensor
from .sizes import pairs_up_to, small_blocks

# Up to how many rows `by_pairs` is used, and the options that lead to a plan.
PLANS = {
    "pairs": (10**9, {}),
    "buckets": (0, {}),
    "sort": (0, {"surrogate": "linear_hinge"}),
    "moments": (0, {"surrogate": "square"}),
    "smooth": (0, {"surrogate": "logistic"}),
    "ordered": (0, {"pairs": "ordered"}),
}


@pytest.fixture(params=PLANS)
def knobs(request, monkeypatch):
    """Compute with one plan during the test; torch operations fail."""
    bound, options = PLANS[request.param]
    monkeypatch.setattr(_arrays, "evaluate", None)
    monkeypatch.setattr(levels, "evaluate", None)
    sizes = small_blocks(CHUNKS=8, ROWS=64, DD_ROWS=64, BLOCK=32)
    with sizes, pairs_up_to(bound), forced("triton"):
        yield options


def rows(shape, seed=0):
    """Return random scores, two classes and weights."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(shape) < 0.4).astype(np.float32)
    labels[:2] = np.reshape([1.0, 0.0], (2,) + (1,) * (len(shape) - 1))
    return rng.normal(size=shape).astype(np.float32), labels, rng.random(shape)


def derivatives(scores, labels, **knobs):
    leaf = scores.clone().requires_grad_()
    losses = pair_loss(leaf, labels, **knobs)
    losses.sum().backward()
    return losses.detach().cpu().numpy(), leaf.grad.cpu()


@pytest.mark.parametrize("weighted", [False, True])
def test_tasks_of_one_class_and_missing_labels(knobs, weighted):
    scores, labels, weights = rows((24, 3))
    labels[::5, 0] = np.nan
    labels[:, 1] = 1.0
    weights = weights if weighted else None
    data = tensor(scores), tensor(labels)
    losses, grad = derivatives(*data, weights=tensor(weights), reduction="none", **knobs)
    hess = pair_derivatives(*data, weights=tensor(weights), **knobs).hess.cpu().numpy()
    for task in range(3):
        known = ~np.isnan(labels[:, task])
        of_task = None if weights is None else weights[known, task]
        value, slopes, curvatures = naive.pair_derivatives(
            scores[known, task].astype(float), labels[known, task], weights=of_task, **knobs
        )
        assert_close(losses[task], value, np.float32)
        assert_close(grad[known, task], slopes, np.float32)
        assert_close(hess[known, task], curvatures, np.float32)
        assert not grad[~known, task].any()
        assert not hess[~known, task].any()
    assert losses[1] == 0.0
    assert not grad[:, 1].any()


def test_batches_of_one_class_are_counted(knobs):
    criterion = PairLoss(**knobs).to(DEVICE)
    for n in (1, 30):
        scores, labels, _ = (tensor(array) for array in rows((max(n, 2),)))
        for same in (torch.ones_like(labels), torch.zeros_like(labels)):
            assert criterion(scores[:n], same[:n]).item() == 0.0
    criterion(scores, labels)
    assert criterion.n_one_class.item() == 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_scores(knobs, dtype):
    scores, labels, _ = rows((100,))
    narrow = tensor(scores).to(dtype)
    value, grad = derivatives(narrow, tensor(labels), **knobs)
    expected, slopes = naive.pair_loss_and_grad(narrow.double().cpu().numpy(), labels, **knobs)
    assert grad.dtype is dtype
    assert_close(value, expected, np.float32)
    error = np.abs(grad.double().numpy() - slopes).max()
    assert error <= torch.finfo(dtype).eps * np.abs(slopes).max()


@pytest.mark.parametrize("bad", [np.nan, -np.inf, np.inf])
def test_scores_that_are_not_finite_give_nan(knobs, bad):
    scores, labels, _ = rows((60,))
    scores[7] = bad
    value, grad = derivatives(tensor(scores), tensor(labels), check=False, **knobs)
    assert np.isnan(value)
    assert grad.isnan().all()
