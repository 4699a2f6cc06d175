"""The algorithms of the paper, line by line and in its notation, for readers.

Rust and Hocking (arXiv:2302.11062) write y_hat for the scores, y for the labels, m for the margin
and v for the scores of which the negatives are raised by m. The coefficients a, b, c belong to
the polynomial ``a x^2 + b x + c``, which is the loss of a negative with score x against all
positives counted so far, and L is the sum over all pairs.

These loops in Python are slow, and lose digits if scores have a large offset. `everypair.pair_loss`
computes the same numbers without either fault; docs/paper.md has the theorems.

>>> import everypair as ep
>>> scores, labels = [0.5, 2.0, 0.0, 1.0], [1, 1, -1, -1]
>>> algorithm_1(scores, labels), ep.pair_loss(scores, labels, surrogate="square", reduction="sum")
(3.5, 3.5)
>>> algorithm_2(scores, labels), ep.pair_loss(scores, labels, reduction="sum")
(2.5, 2.5)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair.inputs import batches, pair_options

Floats = NDArray[np.float64]


def algorithm_1(scores: ArrayLike, labels: ArrayLike, margin: float = 1.0) -> float:
    r"""Sum the square loss over all pairs in O(n): the paper's Algorithm 1.

    .. math:: \sum_{j \in P} \sum_{k \in N} (m - (\hat y_j - \hat y_k))^2

    Parameters
    ----------
    scores : (n,) floating
        The predictions.
    labels : (n,)
        Classes coded {0, 1} or {-1, +1}.
    margin : float
        The margin m; at least 0.

    Returns
    -------
    loss : float
        The sum over all pairs; 0 with one class.

    Examples
    --------
    >>> algorithm_1([0.5, 2.0, 0.0, 1.0], [1, 1, -1, -1])  # 0.25 + 2.25 + 1 + 0
    3.5
    """
    y_hat, y, m = _inputs(scores, labels, margin)
    a = b = c = L = 0.0
    for y_j in y_hat[y == 1]:
        z = m - y_j
        a, b, c = a + 1, b + 2 * z, c + z**2
    for y_k in y_hat[y == -1]:
        L += a * y_k**2 + b * y_k + c
    return float(L)


def algorithm_2(scores: ArrayLike, labels: ArrayLike, margin: float = 1.0) -> float:
    r"""Sum the squared hinge loss over all pairs in O(n log n): the paper's Algorithm 2.

    .. math:: \sum_{j \in P} \sum_{k \in N} \max(0, m - (\hat y_j - \hat y_k))^2

    Parameters and result are those of `algorithm_1`.

    Examples
    --------
    >>> algorithm_2([0.5, 2.0, 0.0, 1.0], [1, 1, -1, -1])  # 0.25 + 2.25 + 0 + 0
    2.5
    """
    y_hat, y, m = _inputs(scores, labels, margin)
    v = y_hat + m * (y == -1)
    a = b = c = L = 0.0
    for i in np.argsort(v, kind="stable"):
        if y[i] == 1:
            z = m - y_hat[i]
            a, b, c = a + 1, b + 2 * z, c + z**2
        else:
            L += a * y_hat[i] ** 2 + b * y_hat[i] + c
    return float(L)


def algorithm_2_backward(scores: ArrayLike, labels: ArrayLike, margin: float = 1.0) -> float:
    """Compute the sum of `algorithm_2` from the largest v down, by a sum over the positives.

    The coefficients now belong to the loss of a positive with score x against the negatives above.

    Examples
    --------
    >>> algorithm_2_backward([0.5, 2.0, 0.0, 1.0], [1, 1, -1, -1])
    2.5
    """
    y_hat, y, m = _inputs(scores, labels, margin)
    v = y_hat + m * (y == -1)
    a = b = c = L = 0.0
    for i in np.argsort(-v, kind="stable"):
        if y[i] == -1:
            z = m + y_hat[i]
            a, b, c = a + 1, b - 2 * z, c + z**2
        else:
            L += a * y_hat[i] ** 2 + b * y_hat[i] + c
    return float(L)


class Recursion(NamedTuple):
    """What `recursion` returns; entry i - 1 of each (n,) array is the paper's entry i."""

    s: NDArray[np.intp]  # rows in ascending order of v
    a: Floats
    b: Floats
    c: Floats
    L: Floats


def recursion(scores: ArrayLike, labels: ArrayLike, margin: float = 1.0) -> Recursion:
    """Compute the coefficients and the partial loss of `algorithm_2` after each row.

    Each line is one of the four recursive equations of the paper, as a running sum.

    Examples
    --------
    >>> s, a, b, c, L = recursion([0.5, 2.0, 0.0, 1.0], [1, 1, -1, -1])
    >>> s.tolist(), a.tolist(), L.tolist()
    ([0, 2, 1, 3], [1.0, 1.0, 2.0, 2.0], [0.0, 0.25, 0.25, 2.5])
    """
    y_hat, y, m = _inputs(scores, labels, margin)
    s = np.argsort(y_hat + m * (y == -1), kind="stable")
    y_hat, positive = y_hat[s], y[s] == 1
    a = np.cumsum(positive * 1.0)
    b = np.cumsum(positive * 2 * (m - y_hat))
    c = np.cumsum(positive * (m - y_hat) ** 2)
    L = np.cumsum(~positive * (a * y_hat**2 + b * y_hat + c))
    return Recursion(s, a, b, c, L)


def _inputs(
    scores: ArrayLike, labels: ArrayLike, margin: float
) -> tuple[Floats, NDArray[np.int_], float]:
    """Check the input of an algorithm; return it with labels coded {-1, +1}."""
    batch = batches.batch_from(scores, labels)
    y = np.where(batches.positives(batch), 1, -1)
    return batch.scores.astype(np.float64), y, pair_options.check_margin(margin)
