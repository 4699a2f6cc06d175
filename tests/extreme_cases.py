"""Small batches with extreme scores, margins, weights and vectors, and what they should give.

They are for the backends that share `everypair.arrays`. Each case is (scores, labels, knobs); the
expected results are those of exact arithmetic.
"""

from __future__ import annotations

import numpy as np

from everypair import naive
from everypair.surrogates import Surrogate, Term

from .exact import exact_double_sum
from .strategies import BUMPY
from .tolerances import RELATIVE, assert_close

CAPPED = Surrogate("capped", (Term(0.0, 1.0, 0.0, knot=0.0), Term(2.0, -1.0, 0.0, knot=2.0)))
LABELS = np.arange(24) % 3 == 0


def _scores(**outliers):
    scores = np.random.default_rng(3).normal(size=LABELS.size).round(3)
    for row, score in outliers.items():
        scores[int(row[1:])] = score
    return scores


def _weights(*, pos=1.0, neg=1.0):
    return np.random.default_rng(4).uniform(0.5, 2.0, LABELS.size) * np.where(LABELS, pos, neg)


# Row 0 is positive, rows 1 and 2 are negative.
OUTLIERS = {
    "a low positive": lambda size: {"r0": -size},
    "two low positives": lambda size: {"r0": -size, "r3": -1.7 * size},
    "a high negative": lambda size: {"r1": size},
    "both": lambda size: {"r0": -size, "r1": 1.3 * size, "r4": 2.9 * size},
    "a high positive and a low negative": lambda size: {"r0": size, "r2": -size},
}

SCORES = {
    f"{where} at {size:.0e}, {surrogate if isinstance(surrogate, str) else surrogate.name}": (
        _scores(**OUTLIERS[where](size)),
        {"surrogate": surrogate},
    )
    for where in OUTLIERS
    for size in (1e8, 1e14, 1e20)
    for surrogate in ("huber_hinge", CAPPED, "squared_hinge")
} | {
    f"margin {margin:.0e}, {surrogate}": (_scores(), {"surrogate": surrogate, "margin": margin})
    for margin in (1e6, 1e12)
    for surrogate in ("huber_hinge", "squared_hinge", "linear_hinge", "square")
}

WEIGHTS = {
    f"weights of {pos:.0e} and {neg:.0e}, {surrogate.name}, {reduction}": (
        _scores(),
        {"surrogate": surrogate, "weights": _weights(pos=pos, neg=neg), "reduction": reduction},
    )
    for pos, neg in (
        (1e160, 1e160),
        (1e-170, 1e-170),
        (1e-300, 1e300),
        (1e19, 1e19),
        (1e-20, 1e-20),
    )
    for surrogate in (BUMPY,)
    for reduction in ("mean", "sum")
    if reduction == "mean" or 1e-30 < pos * neg < 1e30
}

ALONE = {
    "a weightless positive far away": ([-1.0, 0.0, 1e155], [1, 0, 1], [1.0, 1.0, 0.0]),
    "a weightless negative far away": ([-1.0, 0.0, 1e155], [1, 0, 0], [1.0, 1.0, 0.0]),
    "a weightless positive far below": ([-1.0, 0.0, -1e155], [1, 0, 1], [1.0, 1.0, 0.0]),
    "a row that is out of range": ([-1.0, 0.0, 1.7e308, -1.7e308], [1, 0, 0, 1], [1.0, 2.0, 0, 0]),
}

# Scores, labels, margin and surrogate: pairs that stand on a knot or next to it.
ON_THE_KNOT = {
    "a rounded sum on the knot": ([-0.3, 0.0, -1.0], [1, 1, 0], 1.0, "linear_hinge"),
    "no margin": ([-1.0, 1e-17, 2e-17], [1, 1, 0], 0.0, "linear_hinge"),
    "sums that round to the positive": ([0.1, 0.2, 0.3, 0.3, 0.6], [0, 0, 1, 1, 1], 0.1, CAPPED),
    "an offset": ([-1e17, 0.0, 1.0, 2.0, 3.0], [1, 0, 1, 0, 1], 1.0, "linear_hinge"),
}


# Powers of two of a vector and of the weights: entries near the limits of float32 or of float64
# whose products are not.
POWERS = {np.float32: ((-120, 60), (100, -60), (-100, 73)), np.float64: ((-930, 480), (1000, -498))}


def assert_exact_product(backend, dtype, pairs, surrogate, *, of_gradient=False):
    """Compare products of the Hessian and a vector of any size with that of a vector near 1.

    With `of_gradient`, the gradient fits the type too, which a backend differentiates.
    """
    rng = np.random.default_rng(6)
    scores, vector = (rng.normal(size=LABELS.size).astype(dtype) for _ in range(2))
    labels = LABELS if pairs == "binary" else 1.0 + np.arange(LABELS.size) % 5
    weights, knobs = _weights(), {"pairs": pairs, "surrogate": surrogate, "reduction": "sum"}
    expected = naive.pair_hvp(scores.astype(float), labels, vector, weights=weights, **knobs)
    for of_vector, of_weights in POWERS[dtype][: 2 if of_gradient else None]:
        product = backend.hvp(
            scores, np.asarray(labels), np.ldexp(vector, of_vector),
            weights=np.ldexp(weights, of_weights), **knobs,
        )  # fmt: skip
        assert_close(product, np.ldexp(expected, of_vector + 2 * of_weights), dtype)


def assert_exact_beside_outliers(backend, dtype, size):
    """Compare each entry of the gradient of the square, beside a distant score of its own class."""
    for row in (0, 1):  # a positive and a negative
        scores = _scores(**{f"r{row}": size}).astype(dtype)
        own = np.flatnonzero(LABELS if row == 0 else ~LABELS)[1:]
        expected = exact_double_sum(scores, LABELS, surrogate="square").grad
        grad = backend.loss_and_grad(scores, LABELS, surrogate="square")[1]
        np.testing.assert_allclose(grad[own], expected[own], rtol=RELATIVE[np.dtype(dtype)])


def assert_exact_groups(backend, dtype, pairs, surrogate, size):
    """Compare groups of weights from 1 / `size` to `size`, each relative to its largest entry."""
    groups = np.arange(LABELS.size) % 4
    labels = np.arange(LABELS.size) // 4 % (2 if pairs == "binary" else 3)
    labels = labels + (0 if pairs == "binary" else 1)
    scores = _scores().astype(dtype)
    weights = _weights() * size ** (groups / 1.5 - 1.0)
    knobs = {"weights": weights, "groups": groups, "surrogate": surrogate, "pairs": pairs}
    expected = naive.pair_loss_and_grad(scores.astype(float), labels, **knobs)
    value, grad = backend.loss_and_grad(scores, labels, **knobs)
    assert_close(value, expected[0], dtype)
    for group in range(4):
        rows = groups == group
        assert_close(grad[rows], expected[1][rows], dtype)


def assert_exact(backend, scores, labels, *, dtype=np.float64, hvp=True, **knobs):
    """Compare all results of a backend with exact arithmetic.

    Curvatures of terms may cancel far from their knots, so their errors may be as large as those
    of the gradient.
    """
    scores = np.asarray(scores, dtype)
    vector = np.random.default_rng(5).normal(size=scores.size)
    want = exact_double_sum(scores, labels, vector=vector.astype(dtype), **knobs)
    value, grad, hess = backend.derivatives(scores, np.asarray(labels), **knobs)
    assert_close(value, want.value, dtype)
    assert_close(grad, want.grad, dtype)
    assert_close(hess, want.hess, dtype, scale=np.abs(want.grad).max())
    if hvp:
        product = backend.hvp(scores, np.asarray(labels), vector.astype(dtype), **knobs)
        assert_close(product, want.hvp, dtype, scale=np.abs(want.grad).max())
