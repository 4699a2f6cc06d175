"""The losses of the comparison: functions of scores and labels that give one number per column.

Scores and labels have the shape (n, columns). Each column is a model of its own; labels are 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from everypair.surrogates import Surrogate, Term
from everypair.torch import PairLoss

Loss = Callable[[Tensor, Tensor], Tensor]

SLOPE, WIDTH = 200.0, 50.0  # b and r of Charoenphakdee et al. (2019)

# max(-b (r + z) + r, b (z - r), r - z) with z = -t: three lines, the knots where they cross.
BARRIER = Surrogate(
    "barrier_hinge",
    [
        Term(-SLOPE * WIDTH, -SLOPE, 0),
        Term((SLOPE + 1) * WIDTH, SLOPE + 1, 0, knot=-WIDTH),
        Term(-SLOPE * WIDTH, SLOPE - 1, 0, knot=SLOPE * WIDTH / (SLOPE - 1)),
    ],
    default_margin=0.0,
)


def barrier(z: Tensor) -> Tensor:
    """Return the barrier hinge of margins z, by its formula."""
    sides = torch.maximum(-SLOPE * (WIDTH + z) + WIDTH, SLOPE * (z - WIDTH))
    return torch.maximum(sides, WIDTH - z)


def pointwise_barrier(scores: Tensor, labels: Tensor) -> Tensor:
    return barrier((2 * labels - 1) * scores)


def logistic(scores: Tensor, labels: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores, labels, reduction="none")


def mean(loss: Loss) -> Loss:
    """Average a loss over the rows."""
    return lambda scores, labels: loss(scores, labels).mean(0)


def weighted(loss: Loss) -> Loss:
    """Average a loss over the rows so that both classes weigh the same."""

    def value(scores: Tensor, labels: Tensor) -> Tensor:
        share = labels.mean(0)
        weights = 0.5 * (labels / share + (1 - labels) / (1 - share))
        return (weights * loss(scores, labels)).mean(0)

    return value


def pairs(surrogate: str | Surrogate) -> Loss:
    return PairLoss(surrogate=surrogate, reduction="none")


LOSSES: dict[str, Loss] = {
    "logistic": mean(logistic),
    "weighted logistic": weighted(logistic),
    "barrier": mean(pointwise_barrier),
    "weighted barrier": weighted(pointwise_barrier),
    "pair squared hinge": pairs("squared_hinge"),
    "pair logistic": pairs("logistic"),
    "pair sigmoid": pairs("sigmoid"),
    "pair barrier": pairs(BARRIER),
}
