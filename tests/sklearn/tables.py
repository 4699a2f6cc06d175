"""Small synthetic tables, and reference solutions computed from explicit pairs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize


class Table(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    groups: np.ndarray


def table(n=120, d=5, positives=0.3, seed=0):
    """Return rows of overlapping classes, with correlated columns of different units."""
    rng = np.random.default_rng(seed)
    y = (np.arange(n) < positives * n).astype(int)
    rng.shuffle(y)
    X = rng.standard_normal((n, d)) + 0.6 * y[:, None]
    X[:, 1] += X[:, 0]
    X *= np.geomspace(0.2, 5.0, d)
    return Table(X, y, rng.uniform(0.5, 2.0, n), rng.integers(0, 4, n))


def pairs(table, *, weighted=False, grouped=False):
    """Return the differences of all pairs, a row each, and their shares of the mean."""
    i, j = np.meshgrid(np.flatnonzero(table.y == 1), np.flatnonzero(table.y == 0))
    i, j = i.ravel(), j.ravel()
    share = table.weights[i] * table.weights[j] if weighted else np.ones(len(i))
    if grouped:
        share = share * (table.groups[i] == table.groups[j])
    return table.X[i] - table.X[j], share / share.sum()


def pairwise_ridge(table, alpha, margin, **kind):
    """Solve the normal equations of the square surrogate over explicit pairs."""
    differences, share = pairs(table, **kind)
    scatter = (differences * share[:, None]).T @ differences
    gram = 2.0 * scatter + alpha * np.eye(len(scatter))
    return np.linalg.solve(gram, 2.0 * margin * (share @ differences))


def squared_hinge_by_pairs(table, alpha, margin, **kind):
    """Minimise the squared hinge over explicit pairs, with a dense Hessian."""
    differences, share = pairs(table, **kind)

    def value(w):
        t = np.maximum(margin - differences @ w, 0.0)
        return share @ t**2 + 0.5 * alpha * w @ w

    def grad(w):
        t = np.maximum(margin - differences @ w, 0.0)
        return -2.0 * (share * t) @ differences + alpha * w

    def hess(w):
        active = 2.0 * share * (differences @ w < margin)
        return (differences * active[:, None]).T @ differences + alpha * np.eye(len(w))

    w = np.zeros(differences.shape[1])
    found = minimize(value, w, jac=grad, hess=hess, method="trust-exact", options={"gtol": 1e-10})
    return found.x


def knobs_of(table, *, weighted=False, grouped=False):
    """Return the arguments of `fit` other than X and y."""
    return {
        "sample_weight": table.weights if weighted else None,
        "groups": table.groups if grouped else None,
    }
