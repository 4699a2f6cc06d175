"""Small synthetic tables, and reference solutions computed from explicit pairs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from everypair import naive


class Table(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    groups: np.ndarray

    def knobs(self, *, weighted=False, grouped=False):
        """Return the arguments of `fit` other than X and y."""
        return {
            "sample_weight": self.weights if weighted else None,
            "groups": self.groups if grouped else None,
        }


def table(n=120, d=5, positives=0.3, seed=0):
    """Return rows of overlapping classes, with correlated columns of different units."""
    rng = np.random.default_rng(seed)
    y = (np.arange(n) < positives * n).astype(int)
    rng.shuffle(y)
    X = rng.standard_normal((n, d)) + 0.6 * y[:, None]
    X[:, 1] += X[:, 0]
    X *= np.geomspace(0.2, 5.0, d)
    return Table(X, y, rng.uniform(0.5, 2.0, n), rng.integers(0, 4, n))


def minimum(X, labels, alpha, **options):
    """Minimise the double sum by a general method."""

    def objective(w):
        value, grad = naive.pair_loss_and_grad(X @ w, labels, **options)
        return value + 0.5 * alpha * w @ w, X.T @ grad + alpha * w

    return minimize(objective, np.zeros(X.shape[1]), jac=True, tol=1e-12).x
