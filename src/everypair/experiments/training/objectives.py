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
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everypair.experiments.plan import Settings
from everypair.experiments.registry import Registry
from everypair.experiments.training import resampling
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
    resample : callable, optional
        Takes the subtrain part and a seed, and returns the rows to train on.
    begin_epoch : callable
        Called with the module, the epoch and the settings before every epoch.
    package : str
        The Python package that it needs besides torch, and its name on PyPI.
    """

    make: Callable[[Settings, Tensor], nn.Module]
    scores: Literal["as set", "raw", "sigmoid"] = "as set"
    optimisers: tuple[str, ...] = ANY_OPTIMISER
    resample: resampling.Resampler | None = None
    begin_epoch: Callable[[nn.Module, int, Settings], None] = lambda module, epoch, settings: None
    package: tuple[str, str] | None = None


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


class ClassBalancedLoss(nn.Module):
    """The logistic loss with a weight and a margin for each class: mean w_y log(1 + exp(d_y - z)).

    Here z is the score of a positive, and minus the score of a negative.

    Parameters
    ----------
    labels : (n,) tensor
        Those of all rows to train on. A class of n_y rows gets a weight in proportion to
        (1 - beta) / (1 - beta^n_y), beta = 0.9999, so that the mean over the rows is 1 (Cui et al.,
        CVPR 2019), and the margin d_y in proportion to n_y^(-1/4) (Cao et al., NeurIPS 2019).
    margin : float
        The margin of the rarer class.
    deferred : bool
        Whether the weights are 1 until `begin_epoch` sets them.
    """

    def __init__(self, labels: Tensor, *, margin: float, deferred: bool) -> None:
        super().__init__()
        n_pos = (labels > 0).sum()
        counts = torch.stack([len(labels) - n_pos, n_pos]).double().clamp(min=1.0)
        weights = 1 / (1 - 0.9999**counts)
        weights *= len(labels) / (weights * counts).sum()
        self.balanced: Tensor
        self.weights: Tensor
        self.margins: Tensor
        self.register_buffer("balanced", weights.float())
        self.register_buffer("weights", (weights**0 if deferred else weights).float())
        self.register_buffer("margins", (margin * (counts.min() / counts) ** 0.25).float())

    def forward(self, scores: Tensor, labels: Tensor, groups: Tensor | None = None) -> Tensor:
        """Return the mean loss of a batch."""
        y = (labels > 0).long()
        z = torch.where(labels > 0, scores, -scores)
        return (self.weights[y] * F.softplus(self.margins[y] - z)).mean()


def _reweight(module: nn.Module, epoch: int, settings: Settings) -> None:
    """Set the weights for the last fifth of the epochs, the published 40 of 200."""
    if epoch > 0.8 * settings.epochs:
        loss = cast("ClassBalancedLoss", module)
        loss.weights.copy_(loss.balanced)  # in place: a captured CUDA graph reads it


def _ldam(settings: Settings, labels: Tensor) -> nn.Module:
    margin = 0.5 if settings.margin is None else settings.margin
    return ClassBalancedLoss(labels, margin=margin, deferred=True)


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


def _solam(settings: Settings, labels: Tensor) -> nn.Module:
    # SOLAM (Ying et al., NeurIPS 2016) with alpha + margin in the place of its alpha, which starts
    # at 0. That is AUCM without the bound alpha >= 0, and p (1 - p) margin^2 is not subtracted: at
    # the saddle point the value is p (1 - p) times the mean square loss of all pairs.
    margin = 1.0 if settings.margin is None else settings.margin
    loss = AUCMLoss(margin, positive_share=labels.mean().item())
    nn.init.constant_(loss.alpha, margin)
    return _Loss(loss)


_LOGISTIC = Objective(lambda *_: _Loss(nn.BCEWithLogitsLoss()), scores="raw")
_SYNTHETIC = replace(_LOGISTIC, package=("imblearn", "imbalanced-learn"))

OBJECTIVES: Registry[Objective] = Registry(
    "loss",
    {
        "squared_hinge": Objective(pairs("squared_hinge")),
        "square": Objective(pairs("square")),
        "linear_hinge": Objective(pairs("linear_hinge")),
        "logistic": _LOGISTIC,
        "weighted_logistic": Objective(_weighted_logistic, scores="raw"),
        "pairwise_logistic": Objective(pairs("logistic"), scores="raw"),
        "pairwise_sigmoid": Objective(pairs("sigmoid"), scores="raw"),
        # The margin of AUCM is a difference of probabilities.
        "aucm": Objective(_aucm, scores="sigmoid", optimisers=("pesg",)),
        "solam": Objective(_solam, optimisers=("solam",)),
        "effective_number": Objective(
            lambda _, labels: ClassBalancedLoss(labels, margin=0.0, deferred=False), scores="raw"
        ),
        "ldam": Objective(_ldam, scores="raw", begin_epoch=_reweight),
        "oversampling": replace(_LOGISTIC, resample=resampling.oversampling),
        "undersampling": replace(_LOGISTIC, resample=resampling.undersampling),
        "smote": replace(_SYNTHETIC, resample=resampling.smote),
        "adasyn": replace(_SYNTHETIC, resample=resampling.adasyn),
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
