"""Adapters from everypair.torch to the backend interface of the laws (see tests/conftest.py)."""

from __future__ import annotations

from contextlib import nullcontext
from operator import is_not

import numpy as np
import torch

from everypair.torch import pair_derivatives, pair_loss
from everypair.torch._dispatch import forced

_PER_ROW = ("weights", "groups")
_FORCED = {"torch operations": "operations", "torch triton": "triton"}


class TorchBackend:
    """Tensors on a device, computed by its default implementation or by a forced one.

    Gradients and products with the Hessian are those of autograd.
    """

    def __init__(self, name, device="cpu"):
        self.name, self.device = name, device
        self._last = None, None

    def loss(self, scores, labels, **knobs):
        with self._way():
            return self._loss_of(labels, knobs)(self._tensor(scores)).item()

    def loss_and_grad(self, scores, labels, **knobs):
        with self._way():
            leaf = self._tensor(scores).requires_grad_()
            loss = self._loss_of(labels, knobs)(leaf)
            loss.backward()
            return loss.item(), leaf.grad.cpu().numpy()

    def derivatives(self, scores, labels, **knobs):
        with self._way():
            found = pair_derivatives(
                self._tensor(scores), self._tensor(labels), **self._tensors(knobs)
            )
            return found.value.item(), found.grad.cpu().numpy(), found.hess.cpu().numpy()

    def hvp(self, scores, labels, vector, **knobs):
        with self._way():
            _, grad, times_hessian = self._graph(scores, labels, knobs)
            return times_hessian(self._tensor(vector).to(grad.dtype)).cpu().numpy()

    def _way(self):
        return forced(_FORCED[self.name]) if self.name in _FORCED else nullcontext()

    def _graph(self, scores, labels, knobs):
        # Laws need several products with one Hessian, so its graph is kept until the batch changes.
        asked = [scores, labels, *knobs, *knobs.values()]
        known, graph = self._last
        if known is None or len(known) != len(asked) or any(map(is_not, known, asked)):
            graph = self._new_graph(scores, labels, knobs)
            self._last = asked, graph
        return graph

    def _new_graph(self, scores, labels, knobs):
        leaf = self._tensor(scores).requires_grad_()
        loss = self._loss_of(labels, knobs)(leaf)
        (grad,) = torch.autograd.grad(loss, leaf, create_graph=True)
        return loss, grad, lambda v: torch.autograd.grad(grad, leaf, v, retain_graph=True)[0]

    def _tensor(self, array):
        return torch.tensor(np.asarray(array), device=self.device)

    def _tensors(self, knobs):
        per_row = {k: self._tensor(knobs[k]) for k in _PER_ROW if knobs.get(k) is not None}
        return {**knobs, **per_row}

    def _loss_of(self, labels, knobs):
        labels, knobs = self._tensor(labels), self._tensors(knobs)
        return lambda scores: pair_loss(scores, labels, **knobs)


BACKENDS = [TorchBackend("torch"), TorchBackend("torch operations")]
if torch.cuda.is_available():
    BACKENDS.append(TorchBackend("torch cuda", "cuda"))
