"""everypair.torch behind the methods that the laws ask for: NumPy arrays in and out."""

from __future__ import annotations

from contextlib import nullcontext
from operator import is_not

import numpy as np
import torch

from everypair.torch import pair_loss
from everypair.torch._columns import forced


class TorchBackend:
    """Derivatives as autograd gives them, from the kernels or from torch operations."""

    def __init__(self, name):
        self.name = name
        self._last = None, None

    def loss(self, scores, labels, **knobs):
        with self._way():
            return self._loss_of(labels, knobs)(torch.tensor(scores)).item()

    def loss_and_grad(self, scores, labels, **knobs):
        with self._way():
            leaf = torch.tensor(scores, requires_grad=True)
            loss = self._loss_of(labels, knobs)(leaf)
            loss.backward()
            return loss.item(), leaf.grad.numpy()

    def derivatives(self, scores, labels, **knobs):
        with self._way():
            loss, grad, times_hessian = self._graph(scores, labels, knobs)
            hessian = torch.vmap(times_hessian)(torch.eye(grad.numel(), dtype=grad.dtype))
            return loss.item(), grad.detach().numpy(), hessian.diagonal().numpy()

    def hvp(self, scores, labels, vector, **knobs):
        with self._way():
            _, grad, times_hessian = self._graph(scores, labels, knobs)
            return times_hessian(torch.tensor(vector, dtype=grad.dtype)).numpy()

    def _way(self):
        return forced("operations") if self.name == "torch operations" else nullcontext()

    def _graph(self, scores, labels, knobs):
        # Laws ask for several products with one Hessian: the graph behind it is made once.
        asked = [scores, labels, *knobs, *knobs.values()]
        known, graph = self._last
        if known is None or len(known) != len(asked) or any(map(is_not, known, asked)):
            graph = self._new_graph(scores, labels, knobs)
            self._last = asked, graph
        return graph

    def _new_graph(self, scores, labels, knobs):
        leaf = torch.tensor(scores, requires_grad=True)
        loss = self._loss_of(labels, knobs)(leaf)
        (grad,) = torch.autograd.grad(loss, leaf, create_graph=True)
        return loss, grad, lambda v: torch.autograd.grad(grad, leaf, v, retain_graph=True)[0]

    @staticmethod
    def _loss_of(labels, knobs):
        for name in ("weights", "groups"):
            if knobs.get(name) is not None:
                knobs = {**knobs, name: torch.tensor(np.asarray(knobs[name]))}
        labels = torch.tensor(np.asarray(labels))
        return lambda scores: pair_loss(scores, labels, **knobs)


BACKENDS = ("torch", "torch operations")
