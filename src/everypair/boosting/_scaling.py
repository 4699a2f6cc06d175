"""Pair derivatives in the units of the logistic loss, the same for every library.

Boosters weigh a row by its Hessian: ``min_child_weight`` is a least sum of it, ``lambda`` is added
to it, and a leaf steps by gradient over Hessian. Their defaults were chosen with the logistic loss
in mind, whose rows have slope 1/2 and curvature 1/4 at score 0. So the surrogate is stretched along
the scores and scaled until a pair has just these at equal scores, whatever the surrogate and its
margin. Sums over pairs become sums over rows by the factor ``w_pos w_neg / (w_pos + w_neg)`` of the
classes' total weights: at the start a row of a rare class counts as a row of the logistic loss at
score 0, and the rows of the other class share as much among them.

>>> round(LogisticUnits(surrogates.SQUARED_HINGE, 1.0).stretch, 3)  # its margin, in scores
2.0
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from everypair import losses, metrics, surrogates
from everypair.surrogates import Surrogate, Term

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["SOFT_HINGE", "LogisticUnits", "check_metric", "group_ids"]


def _soft_hinge() -> Surrogate:
    """Join slopes of the logistic loss: at shortfalls 0, 5/8, 11/8 and 2, a quarter of its unit."""
    knots = (0.0, 0.625, 1.375, 2.0)
    slopes = (0.0, 0.17, 0.83, 1.0)
    rises = [
        (after - before) / (right - left)
        for before, after, left, right in zip(slopes, slopes[1:], knots, knots[1:], strict=False)
    ]
    bends = np.diff([0.0, *rises, 0.0]).tolist()
    return Surrogate(
        "soft_hinge",
        tuple(
            Term(bend / 2 * knot**2, -bend * knot, bend / 2, knot=knot)
            for bend, knot in zip(bends, knots, strict=True)
        ),
    )


SOFT_HINGE = _soft_hinge()


class LogisticUnits:
    """A surrogate and a margin, stretched and scaled to the logistic loss at equal scores.

    Parameters
    ----------
    surrogate : str or Surrogate
        With a slope and a curvature above 0 at the margin.
    margin : float
        In the surrogate's own unit; the lead asked for in scores is ``margin * stretch``.
    """

    def __init__(self, surrogate: str | Surrogate, margin: float) -> None:
        self.surrogate = surrogates.get(surrogate)
        losses.pair_loss([0.0], [1], margin=margin)  # the door's own message about a margin
        self.margin = float(margin)
        slope = float(self.surrogate.slope(self.margin))
        curvature = float(self.surrogate.curvature(self.margin))
        if slope <= 0.0 or curvature <= 0.0:
            raise ValueError(
                "surrogate must have a slope and a curvature above 0 where scores are equal, since "
                f"trees step by their ratio; {self.surrogate.name!r} with margin={self.margin:g} "
                f"has slope {slope:g} and curvature {curvature:g} there. Choose another margin, or "
                "surrogate='squared_hinge'."
            )
        self.stretch = 2.0 * curvature / slope
        self.height = self.stretch / (2.0 * slope)

    def loss(
        self,
        scores: ArrayLike,
        labels: NDArray[Any],
        weights: NDArray[Any] | None,
        groups: NDArray[Any] | None,
    ) -> float:
        """Return the mean over pairs."""
        return self.height * losses.pair_loss(
            self._unstretched(scores),
            labels,
            surrogate=self.surrogate,
            margin=self.margin,
            weights=weights,
            groups=groups,
        )

    def derivatives(
        self,
        scores: ArrayLike,
        labels: NDArray[Any],
        weights: NDArray[Any] | None,
        groups: NDArray[Any] | None,
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return gradient and diagonal Hessian of the sum that stands for all rows."""
        unstretched = self._unstretched(scores)
        per_score = _rows_of(labels, weights) * self.height / self.stretch
        grad, hess = np.zeros_like(unstretched), np.zeros_like(unstretched)
        # Term by term: a single one is summed several times quicker than one of many, and what
        # cancels between them is far below the single precision that boosters keep.
        for term in self.surrogate.terms:
            found = losses.pair_derivatives(
                unstretched,
                labels,
                surrogate=Surrogate(self.surrogate.name, (term,)),
                margin=self.margin,
                weights=weights,
                groups=groups,
            )
            grad += found.grad
            hess += found.hess
        grad *= per_score
        hess *= per_score / self.stretch
        return grad, hess

    def _unstretched(self, scores: ArrayLike) -> NDArray[Any]:
        return np.asarray(scores, dtype=np.float64) / self.stretch


def _rows_of(labels: NDArray[Any], weights: NDArray[Any] | None) -> float:
    """Return how many rows the mean pair stands for: the logistic loss's n * p * (1 - p)."""
    positive = labels > 0
    if weights is None:
        n_pos, n = float(np.count_nonzero(positive)), float(labels.shape[0])
    else:
        n_pos = float(weights.sum(where=positive, dtype=np.float64))
        n = float(weights.sum(dtype=np.float64))
    return n_pos * (n - n_pos) / n if n else 0.0


def measure(
    metric: str,
    units: LogisticUnits,
    scores: NDArray[Any],
    labels: NDArray[Any],
    weights: NDArray[Any] | None,
    groups: NDArray[Any] | None,
) -> float:
    """Return the exact AUC or the mean loss of an evaluation set."""
    if metric == "loss":
        return units.loss(scores, labels, weights, groups)
    scores = np.asarray(scores, dtype=np.float64)
    return metrics.auc(scores, labels, weights=weights, groups=groups)


def check_metric(metric: str) -> Literal["auc", "loss"]:
    """Refuse what is not a metric."""
    if metric in ("auc", "loss"):
        return metric  # type: ignore[return-value]
    raise ValueError(f"metric must be 'auc' or 'loss'; got {metric!r}.")


def group_ids(sizes: ArrayLike | None, n: int) -> NDArray[np.int64] | None:
    """Turn the sizes of consecutive groups into one number for each row."""
    if sizes is None or np.size(sizes) == 0:
        return None
    sizes = np.asarray(sizes)
    if sizes.sum() != n:
        raise ValueError(
            f"group must hold sizes that add up to the {n} rows; they add up to {sizes.sum()}. "
            "Pass the size of each group of consecutive rows."
        )
    return np.repeat(np.arange(sizes.shape[0]), sizes)


def row_weights(weights: ArrayLike | None) -> NDArray[np.float64] | None:
    """Return weights as the core takes them; an empty array means none."""
    if weights is None or np.size(weights) == 0:
        return None
    return np.asarray(weights, dtype=np.float64)
