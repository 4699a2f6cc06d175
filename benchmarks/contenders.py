"""The implementations that are compared. Each takes a batch and returns the call to be timed.

Everything that is not part of a training step (tensors, modules) is built outside the call. Each
call returns a loss and its gradient with respect to the scores. A contender that is not installed,
or that needs too much memory, returns None.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

import everypair as ep
from benchmarks.inputs import Batch
from everypair.experiments.figures.timing import algorithm_2
from everypair.kernel import choose
from everypair.torch import PairLoss

Call = Callable[[], object]

NAIVE_PAIRS_THAT_FIT = 2.5e7


class Contender(NamedTuple):
    """An implementation of a loss and its gradient, and the name of its surrogate."""

    backend: str
    surrogate: str


def has_native() -> bool:
    return find_spec("everypair._native") is not None


def everypair(batch: Batch, surrogate: str, backend: str) -> Call:
    scores, labels, margin = batch

    def call() -> object:
        return ep.pair_loss_and_grad(scores, labels, surrogate=surrogate, margin=margin)

    def call_with_backend() -> object:
        with choose.backend(backend):
            return call()

    # Entering the context takes as long as a small batch; the default backend does not need it.
    is_default = (backend == "native") == has_native()
    return call if is_default else call_with_backend


def with_autograd(batch: Batch, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Call:
    scores = torch.from_numpy(batch.scores).requires_grad_()
    labels = torch.from_numpy(batch.labels).to(scores.dtype)

    def call() -> object:
        scores.grad = None
        value = loss(scores, labels)
        value.backward()
        return value, scores.grad

    return call


def bce(batch: Batch) -> Call:
    return with_autograd(batch, F.binary_cross_entropy_with_logits)


def naive(batch: Batch) -> Call | None:
    n_pos = float(batch.labels.sum())
    if n_pos * (batch.labels.size - n_pos) > NAIVE_PAIRS_THAT_FIT:
        return None

    def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        pos = scores[labels == 1]
        neg = scores[labels == 0]
        return F.relu(batch.margin - (pos[:, None] - neg[None, :])).square().mean()

    return with_autograd(batch, loss)


def paper(batch: Batch) -> Call:
    return with_autograd(batch, partial(algorithm_2, margin=batch.margin))


def aucm(batch: Batch) -> Call:
    """Compute the AUC-margin loss, version 1, from its published formula, on sigmoid scores."""
    a, b, alpha = (torch.zeros(1, requires_grad=True) for _ in range(3))

    def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        h = torch.sigmoid(scores)
        pos, neg = labels, 1 - labels
        p = pos.mean()
        spread = (1 - p) * ((h - a) ** 2 * pos).mean() + p * ((h - b) ** 2 * neg).mean()
        gap = p * (1 - p) * batch.margin + (p * h * neg - (1 - p) * h * pos).mean()
        return (spread + 2 * alpha * gap - p * (1 - p) * alpha**2).sum()

    return with_autograd(batch, loss)


def libauc(batch: Batch) -> Call | None:
    """Call the AUCMLoss of the installed LibAUC."""
    if find_spec("libauc") is None:
        return None
    from libauc.losses import AUCMLoss

    criterion = AUCMLoss(margin=batch.margin, device="cpu")
    return with_autograd(batch, lambda s, y: criterion(torch.sigmoid(s), y).sum())


def pair_loss(batch: Batch) -> Call:
    return with_autograd(batch, PairLoss(margin=batch.margin))


TORCH = {
    "torch BCE": ("logistic", bce),
    "torch naive": ("squared_hinge", naive),
    "torch paper": ("squared_hinge", paper),
    "torch AUCM": ("aucm", aucm),
    "LibAUC AUCM": ("aucm", libauc),
    "everypair.torch": ("squared_hinge", pair_loss),
}

BCE = Contender("torch BCE", "logistic")
NATIVE = Contender("everypair", "squared_hinge")
NUMPY = Contender("everypair NumPy", "squared_hinge")
PAIR_LOSS = Contender("everypair.torch", "squared_hinge")
IN_TORCH = tuple(Contender(name, surrogate) for name, (surrogate, _) in TORCH.items())


def call_of(contender: Contender, batch: Batch) -> Call | None:
    """Return the call to be timed, or None if the contender cannot run."""
    if contender.backend in TORCH:
        return TORCH[contender.backend][1](batch)
    backend = "numpy" if contender.backend == NUMPY.backend else "native"
    if backend == "native" and not has_native():
        return None
    return everypair(batch, contender.surrogate, backend)
