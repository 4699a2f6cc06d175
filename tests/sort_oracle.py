"""A second oracle, for batches with too many pairs for the double sum: sorting in long double."""

from __future__ import annotations

import numpy as np

from .strategies import Answer


def squared_hinge_by_sorting(scores, labels, margin=1.0, vector=None):
    """Compute the mean squared hinge over all pairs from counts and sums below each score.

    The pairs of a negative that count are the positives below ``v = s_neg + margin``. Their
    shortfalls are ``v - s_pos``, so their squares sum to ``count v^2 - 2 v sum + sum of squares``.
    """
    x = scores.astype(np.longdouble)
    x = x - np.median(x)
    vector = np.zeros(x.size) if vector is None else vector
    pos, neg = np.flatnonzero(labels), np.flatnonzero(~labels)
    pairs = np.longdouble(pos.size) * neg.size
    loss = np.longdouble(0)
    grad, hess, hvp = np.empty((3, x.size), np.longdouble)
    for queries, others, sign in ((neg, pos, 1), (pos, neg, -1)):
        # For the positives both signs change: -s_pos + margin is compared with -s_neg.
        v, order = sign * x[queries] + margin, np.argsort(sign * x[others])
        o, z = sign * x[others][order], vector[others][order].astype(np.longdouble)
        sums, squares, products = (np.append(0, np.cumsum(a)) for a in (o, o * o, z))
        count = np.searchsorted(o, v, side="left")
        grad[queries] = sign * 2 * (count * v - sums[count]) / pairs
        hess[queries] = 2 * count / pairs
        hvp[queries] = 2 * (count * vector[queries] - products[count]) / pairs
        loss += (count * v * v - 2 * v * sums[count] + squares[count]).sum() / pairs / 2
    return Answer(float(loss), *np.stack([grad, hess, hvp]).astype(np.float64))
