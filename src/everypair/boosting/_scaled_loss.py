"""Pair derivatives in the units of the logistic loss, the same for every library.

Boosters weigh a row by its Hessian: ``min_child_weight`` is a least sum of it, ``lambda`` is added
to it, and a leaf steps by gradient over Hessian. Their defaults were chosen with the logistic loss
in mind. So the surrogate is stretched along the scores and scaled until a pair with equal scores
has slope 1 and curvature 1/2, twice those of a row of the logistic loss at score 0, whatever the
surrogate and its margin; and the mean over pairs is multiplied by ``w_pos w_neg / (w_pos + w_neg)``
of the classes' total weights. At the start the gradient of every row is then that of the logistic
loss with the best intercept, and so is the sum of all Hessians.

>>> round(Pairs(surrogates.SQUARED_HINGE, 1.0, "pairs").lead, 3)  # its margin, in scores
2.0
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from everypair import losses, metrics, surrogates
from everypair.boosting import _logistic_hess
from everypair.surrogates import Surrogate, Term

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["SOFT_HINGE", "Hessian", "Pairs", "check_metric", "group_ids"]

Hessian = Literal["logistic", "pairs"]


def _soft_hinge() -> Surrogate:
    """Join slopes near those of the logistic loss; a margin of 1 is a lead of 6 in scores."""
    knots = np.array([0.0, 11.0, 19.0, 30.0]) / 15.0
    slopes = np.array([0.0, 0.1, 0.9, 1.0])
    bends = np.diff([0.0, *(np.diff(slopes) / np.diff(knots)), 0.0]).tolist()
    return Surrogate(
        "soft_hinge",
        tuple(
            Term(bend / 2 * knot**2, -bend * knot, bend / 2, knot=knot)
            for bend, knot in zip(bends, knots.tolist(), strict=True)
        ),
    )


SOFT_HINGE = _soft_hinge()


class Pairs:
    """A surrogate and a margin in the units of the logistic loss, and what stands for curvature.

    Parameters
    ----------
    surrogate : str or Surrogate
        With a slope and a curvature above 0 at the margin; ``"soft_hinge"`` is known here as well.
    margin : float
        In the surrogate's own unit.
    hessian : {"logistic", "pairs"}
        See `lightgbm_objective`.

    Attributes
    ----------
    given : Surrogate
        As it came.
    surrogate : Surrogate
        Stretched and scaled.
    lead : float
        The margin in scores.
    """

    def __init__(
        self, surrogate: str | Surrogate, margin: float, hessian: Hessian = "logistic"
    ) -> None:
        given = SOFT_HINGE if surrogate == SOFT_HINGE.name else surrogates.get(surrogate)
        losses.pair_loss([0.0], [1], margin=margin)  # the door's own message about a margin
        margin = float(margin)
        slope, curvature = float(given.slope(margin)), float(given.curvature(margin))
        if slope <= 0.0 or curvature <= 0.0:
            raise ValueError(
                "surrogate must have a slope and a curvature above 0 where scores are equal, since "
                f"trees step by their ratio; {given.name!r} with margin={margin:g} "
                f"has slope {slope:g} and curvature {curvature:g} there. The default, and "
                "surrogate='squared_hinge', have both with margin=1."
            )
        if hessian not in ("logistic", "pairs"):
            raise ValueError(
                f"hessian must be 'logistic' or 'pairs', which is the exact one; got {hessian!r}."
            )
        self.given, self.margin, self.hessian = given, margin, hessian
        stretch = 2.0 * curvature / slope
        self.lead = margin * stretch
        self.surrogate = _resized(given, stretch, stretch / slope)

    def loss(
        self,
        scores: ArrayLike,
        labels: NDArray[Any],
        weights: NDArray[Any] | None,
        groups: NDArray[Any] | None,
    ) -> float:
        """Return the mean over pairs."""
        return losses.pair_loss(
            np.asarray(scores, dtype=np.float64),
            labels,
            surrogate=self.surrogate,
            margin=self.lead,
            weights=weights,
            groups=groups,
        )

    def derivatives(
        self,
        scores: NDArray[Any],
        labels: NDArray[Any],
        weights: NDArray[Any] | None,
        groups: NDArray[Any] | None,
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return gradient and Hessian of the sum that stands for all rows."""
        if np.ndim(scores) != 1:
            raise ValueError(
                "labels must hold two classes; the booster has scores of shape "
                f"{np.shape(scores)}, one column for each of several. Train each class against the "
                "rest, as sklearn.multiclass.OneVsRestClassifier does."
            )
        given: dict[str, Any] = {
            "surrogate": self.surrogate,
            "margin": self.lead,
            "weights": weights,
            "groups": groups,
        }
        # Boosters keep single precision. Pairs know no offset, so that none costs digits here.
        near = np.empty(np.shape(scores), dtype=np.float32)
        np.subtract(scores, scores[0], out=near, casting="same_kind")
        if self.hessian == "pairs":
            found = losses.pair_scaled_loss(near, labels, **given)
            rows = np.float32(_rows_of(labels > 0, weights))
            return found.grad * rows, found.hess * rows
        _, grad = losses.pair_loss_and_grad(near, labels, **given)  # which checks all of them
        positive = labels > 0
        grad *= np.float32(_rows_of(positive, weights))
        return grad, _logistic_hess.logistic_hessian(near, positive, weights, groups)

    def __repr__(self) -> str:
        return f"surrogate={self.given.name!r}, margin={self.margin:g}, hessian={self.hessian!r}"


def _resized(surrogate: Surrogate, stretch: float, height: float) -> Surrogate:
    """Return height * surrogate(t / stretch)."""
    return Surrogate(
        surrogate.name,
        tuple(
            Term(
                height * term.c0,
                height / stretch * term.c1,
                height / stretch**2 * term.c2,
                knot=None if term.knot is None else stretch * term.knot,
            )
            for term in surrogate.terms
        ),
    )


def _rows_of(positive: NDArray[np.bool_], weights: NDArray[Any] | None) -> float:
    """Return how many rows the mean pair stands for: the logistic loss's n * p * (1 - p)."""
    if weights is None:
        n_pos, n = float(np.count_nonzero(positive)), float(positive.shape[0])
    else:
        n_pos = float(weights.sum(where=positive, dtype=np.float64))
        n = float(weights.sum(dtype=np.float64))
    return n_pos * (n - n_pos) / n if n else 0.0


def measure(
    metric: str,
    pairs: Pairs,
    scores: NDArray[Any],
    labels: NDArray[Any],
    weights: NDArray[Any] | None,
    groups: NDArray[Any] | None,
) -> float:
    """Return the exact AUC or the mean loss of an evaluation set."""
    if metric == "loss":
        return pairs.loss(scores, labels, weights, groups)
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
