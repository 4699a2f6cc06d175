"""The table of losses that experiments compare.

>>> [loss for loss in OBJECTIVES if "logistic" in loss]
['logistic', 'weighted_logistic', 'pairwise_logistic']
>>> import torch
>>> make = OBJECTIVES.find("squared_hinge").make
>>> criterion = make(Settings(margin=0.5), torch.tensor([1.0, 0.0]))
>>> criterion(torch.tensor([0.9, 0.2, 0.6]), torch.tensor([1.0, 0.0, 0.0])).item() < 0.03
True
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everypair.experiments.plan import Settings
from everypair.experiments.registry import Registry
from everypair.surrogates import Surrogate
from everypair.torch import AUCMLoss, PairLoss

ANY_OPTIMISER = ("sgd", "momentum", "adam", "lbfgs", "sag")
"""Optimisers for any loss that is minimised over the model's weights alone."""


@dataclass(frozen=True)
class Objective:
    """A loss to train with.

    Attributes
    ----------
    make : callable
        Takes the settings and the labels of the subtrain part and returns a module.
        ``module(scores, labels, groups)`` returns the loss of a batch; `groups` may be None.
    scores : {"as set", "raw", "sigmoid"}
        Whether the model ends in a sigmoid; "as set" follows `Settings.scores`.
    optimisers : tuple of str
        Names of the optimisers that can train it; the first is the default.
    """

    make: Callable[[Settings, Tensor], nn.Module]
    scores: Literal["as set", "raw", "sigmoid"] = "as set"
    optimisers: tuple[str, ...] = ANY_OPTIMISER


class _Loss(nn.Module):
    """Calls a loss module with the groups of the rows if it uses groups, and without if not."""

    def __init__(self, loss: nn.Module, *, grouped: bool = False) -> None:
        super().__init__()
        self.loss, self.grouped = loss, grouped

    def forward(self, scores: Tensor, labels: Tensor, groups: Tensor | None = None) -> Tensor:
        """Return the loss of a batch."""
        options = (None, groups) if self.grouped else ()
        return cast("Tensor", self.loss(scores, labels, *options))


def pairs(surrogate: str | Surrogate) -> Callable[[Settings, Tensor], nn.Module]:
    """Return a function that makes the pair loss of a surrogate, for `Objective.make`."""
    # Without checks, scores that are not finite give NaN, and the training reports the epoch.
    return lambda settings, labels: _Loss(
        PairLoss(surrogate=surrogate, margin=settings.margin, check=False), grouped=True
    )


class WarmStartLoss(nn.Module):
    """The logistic loss of the network's raw outputs, from scores with or without a sigmoid."""

    def __init__(self, *, sigmoid: bool) -> None:
        super().__init__()
        self.sigmoid = sigmoid

    def forward(self, scores: Tensor, labels: Tensor, groups: Tensor | None = None) -> Tensor:
        """Return the mean loss of a batch."""
        outputs = scores.logit(eps=1e-6) if self.sigmoid else scores
        return F.binary_cross_entropy_with_logits(outputs, labels)


def _weighted_logistic(settings: Settings, labels: Tensor) -> nn.Module:
    n_pos = labels.sum().clamp(min=1.0)
    return _Loss(nn.BCEWithLogitsLoss(pos_weight=(len(labels) - n_pos) / n_pos))


def _aucm(settings: Settings, labels: Tensor) -> nn.Module:
    # p in the formula is the share of positives in the data. LibAUC uses the share in each batch,
    # so that batches of one class have no gradient; protocol "paper" keeps that.
    share = labels.mean().item() if settings.protocol == "corrected" else None
    return _Loss(
        AUCMLoss(1.0 if settings.margin is None else settings.margin, positive_share=share)
    )


OBJECTIVES: Registry[Objective] = Registry(
    "loss",
    {
        "squared_hinge": Objective(pairs("squared_hinge")),
        "square": Objective(pairs("square")),
        "linear_hinge": Objective(pairs("linear_hinge")),
        "logistic": Objective(lambda *_: _Loss(nn.BCEWithLogitsLoss()), scores="raw"),
        "weighted_logistic": Objective(_weighted_logistic, scores="raw"),
        "pairwise_logistic": Objective(pairs("logistic"), scores="raw"),
        "pairwise_sigmoid": Objective(pairs("sigmoid"), scores="raw"),
        # The margin of AUCM is a difference of probabilities.
        "aucm": Objective(_aucm, scores="sigmoid", optimisers=("pesg",)),
    },
)
"""The losses by name."""


def ends_in_sigmoid(loss: str, settings: Settings) -> bool:
    """Return whether the model of a loss ends in a sigmoid.

    Under protocol "paper" every model does, as in the authors' code, so that the logistic losses
    apply a second sigmoid. Under "corrected" the logistic losses and the pairwise sigmoid loss
    always take raw scores, AUCM always takes probabilities, and the other losses follow
    `Settings.scores`.

    >>> ends_in_sigmoid("logistic", Settings(scores="sigmoid"))
    False
    >>> ends_in_sigmoid("logistic", Settings(scores="sigmoid", protocol="paper"))
    True
    """
    wanted = OBJECTIVES.find(loss).scores
    if settings.protocol == "paper":
        return True
    return (settings.scores if wanted == "as set" else wanted) == "sigmoid"
