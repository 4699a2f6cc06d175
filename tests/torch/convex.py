"""A convex problem with a known optimum: a linear scorer with a ridge, on a fixed partition."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize

import everypair as ep
from everypair.torch._module import PairLoss

RIDGE = 1e-2


class Problem:
    """The mean over batches of the pair loss of a batch, plus ``RIDGE / 2 * |w|^2``."""

    def __init__(self, n=2000, d=20, n_batches=40, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.X = torch.randn(n, d, generator=generator, dtype=torch.float64)
        truth = torch.randn(d, generator=generator, dtype=torch.float64)
        noise = torch.randn(n, generator=generator, dtype=torch.float64)
        self.labels = self.X @ (truth / truth.norm()) + noise > 1.2
        self.parts = torch.randperm(n, generator=generator).chunk(n_batches)
        self.optimum = minimize(
            self.value_and_grad, np.zeros(d), jac=True, method="L-BFGS-B", options={"gtol": 1e-12}
        )

    def value_and_grad(self, w):
        value, grad = RIDGE / 2 * w @ w, RIDGE * w
        for rows in self.parts:
            X = self.X[rows].numpy()
            loss, by_score = ep.pair_loss_and_grad(X @ w, self.labels[rows].numpy())
            value = value + loss / len(self.parts)
            grad = grad + X.T @ by_score / len(self.parts)
        return value, grad

    def gap(self, w):
        """How far above the optimum the objective is."""
        return self.value_and_grad(w.detach().numpy())[0] - self.optimum.fun

    def loss(self, w, i):
        """The pair loss of batch `i`, without the ridge."""
        return PairLoss()(self.X[self.parts[i]] @ w, self.labels[self.parts[i]])
