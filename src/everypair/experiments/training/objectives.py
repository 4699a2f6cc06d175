"""Losses that experiments compare, as data: what each one minimises and on which scores.

>>> sorted(OBJECTIVES)
['aucm', 'linear_hinge', 'logistic', 'square', 'squared_hinge', 'weighted_logistic']
>>> import torch
>>> criterion = OBJECTIVES.find("squared_hinge").make(
...     Settings(margin=0.5), torch.tensor([1.0, 0.0])
... )
>>> criterion(torch.tensor([0.9, 0.2, 0.6]), torch.tensor([1.0, 0.0, 0.0])).item() < 0.03
True
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everypair.experiments.plan import Settings
from everypair.experiments.registry import Registry
from everypair.surrogates import Surrogate
from everypair.torch import AUCMLoss, PairLoss

__all__ = ["ANY_OPTIMISER", "OBJECTIVES", "Objective", "ends_in_sigmoid", "pairs"]

ANY_OPTIMISER = ("sgd", "momentum", "adam", "lbfgs", "sag")
"""What a loss that is simply minimised can be trained with."""


@dataclass(frozen=True)
class Objective:
    """A loss to train with.

    Attributes
    ----------
    make : callable
        From the settings and the labels of the subtrain part, a module: ``module(scores, labels,
        groups)`` returns the loss of a batch, and `groups` may be None.
    scores : {"as set", "raw", "sigmoid"}
        What the model ends in: as `Settings.scores` says, or always the same.
    optimisers : tuple of str
        What can train it, the default first.
    """

    make: Callable[[Settings, Tensor], nn.Module]
    scores: Literal["as set", "raw", "sigmoid"] = "as set"
    optimisers: tuple[str, ...] = ANY_OPTIMISER


class Pairs(nn.Module):
    """A surrogate averaged over every pair, inside groups where there are some."""

    def __init__(self, surrogate: str | Surrogate, margin: float) -> None:
        super().__init__()
        # Unchecked: scores that are not finite give NaN, which the training reports with its epoch.
        self.loss = PairLoss(surrogate=surrogate, margin=margin, check=False)

    def forward(self, scores: Tensor, labels: Tensor, groups: Tensor | None = None) -> Tensor:
        """Return the loss of a batch."""
        return cast("Tensor", self.loss(scores, labels, None, groups))


class Logistic(nn.Module):
    """Cross-entropy of each row by itself; a positive may weigh more than a negative."""

    positive_weight: Tensor | None

    def __init__(self, positive_weight: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("positive_weight", positive_weight)

    def forward(self, scores: Tensor, labels: Tensor, groups: Tensor | None = None) -> Tensor:
        """Return the loss of a batch."""
        return F.binary_cross_entropy_with_logits(scores, labels, pos_weight=self.positive_weight)


class AUCM(nn.Module):
    """The AUC margin loss; it knows no groups."""

    def __init__(self, margin: float, positive_share: float | None) -> None:
        super().__init__()
        self.saddle = AUCMLoss(margin, positive_share=positive_share)

    def forward(self, scores: Tensor, labels: Tensor, groups: Tensor | None = None) -> Tensor:
        """Return the value of the saddle at a batch."""
        return cast("Tensor", self.saddle(scores, labels))


def pairs(surrogate: str | Surrogate) -> Callable[[Settings, Tensor], nn.Module]:
    """Return what makes the pair loss of a surrogate, for `Objective.make`."""
    return partial(_pairs, surrogate)


def _pairs(surrogate: str | Surrogate, settings: Settings, labels: Tensor) -> nn.Module:
    return Pairs(surrogate, settings.margin)


def _logistic(settings: Settings, labels: Tensor) -> nn.Module:
    return Logistic()


def _weighted_logistic(settings: Settings, labels: Tensor) -> nn.Module:
    n_pos = labels.sum().clamp(min=1.0)
    return Logistic((len(labels) - n_pos) / n_pos)


def _aucm(settings: Settings, labels: Tensor) -> nn.Module:
    # The formula's p is the share in the data. LibAUC's default, kept under the paper's protocol,
    # is that of each batch, from which batches of one class learn nothing.
    corrected = settings.protocol == "corrected"
    return AUCM(settings.margin, labels.mean().item() if corrected else None)


OBJECTIVES: Registry[Objective] = Registry(
    "loss",
    {
        "squared_hinge": Objective(pairs("squared_hinge")),
        "square": Objective(pairs("square")),
        "linear_hinge": Objective(pairs("linear_hinge")),
        "logistic": Objective(_logistic, scores="raw"),
        "weighted_logistic": Objective(_weighted_logistic, scores="raw"),
        # Its margin is a difference of probabilities.
        "aucm": Objective(_aucm, scores="sigmoid", optimisers=("pesg",)),
    },
)
"""From the name of a loss to what it is."""


def ends_in_sigmoid(loss: str, settings: Settings) -> bool:
    """Return whether the model of a loss ends in a sigmoid.

    Under the paper's protocol it does for every loss, as in the authors' code, so that the logistic
    losses have two; as corrected, these take raw scores whatever is set, and AUCM probabilities.

    Examples
    --------
    >>> ends_in_sigmoid("logistic", Settings(scores="sigmoid"))
    False
    >>> ends_in_sigmoid("logistic", Settings(scores="sigmoid", protocol="paper"))
    True
    """
    wanted = OBJECTIVES.find(loss).scores
    if settings.protocol == "paper":
        return True
    return (settings.scores if wanted == "as set" else wanted) == "sigmoid"
