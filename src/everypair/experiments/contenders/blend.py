"""Weights of a blend by greedy selection on validation scores (Caruana et al. 2004 and 2006).

A selection begins with no model and adds `STEPS` times the model with which the validation AUC of
the sum of log-odds is greatest; a model may be added several times. One selection depends much on
the chance of the validation rows. The mean of `BAGS` selections, each among a random half of the
models, depends less on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from everypair.experiments.families import Floats

BAGS, STEPS = 20, 10

LEAST = 0.02
"""Models with a smaller weight are left out, since each one has to be fitted, saved and scored."""


def blend_weights(odds: Floats, auc: Callable[[Floats], float]) -> Floats:
    """Return the weights of the models, (m,): at least 0, with the sum 1.

    Parameters
    ----------
    odds : (m, n)
        The log-odds of n validation rows by each of m models that were not fitted on these rows.
    auc : callable
        Takes scores, (n,), and returns their validation AUC.

    >>> import everypair as ep
    >>> labels = np.array([1, 1, 0, 0, 0])
    >>> odds = np.array([[2.0, 1.0, 0.0, -1.0, -2.0], [1.0, 0.0, 1.0, 1.0, 1.0], np.zeros(5)])
    >>> blend_weights(odds, lambda scores: ep.auc(scores, labels)).round(2)
    array([0.55, 0.  , 0.45])
    """
    generator, m = np.random.default_rng(0), len(odds)
    weights, alone = np.zeros(m), [auc(scores) for scores in odds]
    for _ in range(BAGS):
        half = generator.permutation(m)[: max(2, (m + 1) // 2)].tolist()
        half.sort(key=lambda model: -alone[model])  # of equal AUCs, the first counts
        for chosen in selection(odds, auc, half):
            weights[chosen] += 1 / (BAGS * STEPS)
    weights[weights < LEAST] = 0.0
    return np.asarray(weights / weights.sum(), np.float64)


def selection(odds: Floats, auc: Callable[[Floats], float], models: Sequence[int]) -> Iterator[int]:
    """Yield the number of the model that each step adds."""
    total = np.zeros(odds.shape[1])
    for _ in range(STEPS):
        best = max(models, key=lambda model: auc(total + odds[model]))
        total += odds[best]
        yield best
