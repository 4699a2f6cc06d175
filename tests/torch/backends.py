"""everypair.torch behind the methods that the laws ask for: NumPy arrays in and out."""

from __future__ import annotations

from contextlib import nullcontext
from operator import is_not

import numpy as np
import torch

from everypair.torch import pair_loss
from everypair.torch._columns import forced


class TorchBackend:
    """Derivatives as autograd gives them: from the kernels of a device, or from operations."""

    def __init__(self, name):
        self.name = name
        self.device = "cuda" if name == "torch cuda" else "cpu"
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
            loss, grad, times_hessian = self._graph(scores, labels, knobs)
            eye = torch.eye(grad.numel(), dtype=grad.dtype, device=self.device)
            hessian = torch.vmap(times_hessian)(eye)
            return loss.item(), grad.detach().cpu().numpy(), hessian.diagonal().cpu().numpy()

    def hvp(self, scores, labels, vector, **knobs):
        with self._way():
            _, grad, times_hessian = self._graph(scores, labels, knobs)
            return times_hessian(self._tensor(vector).to(grad.dtype)).cpu().numpy()

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
        leaf = self._tensor(scores).requires_grad_()
        loss = self._loss_of(labels, knobs)(leaf)
        (grad,) = torch.autograd.grad(loss, leaf, create_graph=True)
        return loss, grad, lambda v: torch.autograd.grad(grad, leaf, v, retain_graph=True)[0]

    def _tensor(self, array):
        return torch.tensor(np.asarray(array), device=self.device)

    def _loss_of(self, labels, knobs):
        for name in ("weights", "groups"):
            if knobs.get(name) is not None:
                knobs = {**knobs, name: self._tensor(knobs[name])}
        labels = self._tensor(labels)
        return lambda scores: pair_loss(scores, labels, **knobs)


BACKENDS = ("torch", "torch operations", *(["torch cuda"] if torch.cuda.is_available() else []))
