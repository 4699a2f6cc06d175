"""Detect divergence of a training from the losses and scores of an epoch, and suggest remedies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch

from everypair.streaming import PairAccumulator
from everypair.torch.training.epoch_scores import EpochRows

# A loss is too large at this many times that of a constant score. Scores of ordinary size stay
# below it even if every pair is in the wrong order.
_EXPLODED = 10.0

_LOWER_RATE = (
    "Divide the learning rate by 10, or clip gradients with torch.nn.utils.clip_grad_norm_; check "
    "that inputs are scaled to about unit size."
)


class DivergenceWarning(UserWarning):
    """A training has diverged; the message says when, how, and what to try."""


class DivergenceError(RuntimeError):
    """A training has diverged, and `EpochMonitor` was made with ``on_divergence="raise"``."""


@dataclass(frozen=True)
class Finding:
    """One problem of a training.

    Attributes
    ----------
    epoch : int
    split : str
    kind : {"not finite", "overflow", "exploded", "rising", "constant", "one class"}
    what : str
        What happened.
    remedy : str
        What to try.
    """

    epoch: int
    split: str
    kind: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"epoch {self.epoch}, {self.split}: {self.what} {self.remedy}"


def check_finite(epoch: int, split: str, rows: EpochRows, sizes: Sequence[int]) -> Finding | None:
    """Return the problem of scores that are NaN or infinite; `sizes` are those of the batches."""
    bad = rows.known & ~rows.scores.isfinite()
    if not bad.any():
        return None
    row = bad.reshape(-1, bad.shape[-1]).any(0).int().argmax()
    batch = int(torch.searchsorted(torch.tensor(sizes).cumsum(0), row, right=True))
    return Finding(
        epoch,
        split,
        "not finite",
        f"{int(bad.sum())} of {int(rows.known.sum())} scores are NaN or infinite, first in batch "
        f"{batch}.",
        f"The model's weights cannot be used: go back to an earlier checkpoint. {_LOWER_RATE}",
    )


def check_rows(
    epoch: int, split: str, tasks: Sequence[PairAccumulator], pairs: str
) -> Finding | None:
    """Return the problem of rows that cannot be ranked, or that the model does not rank."""
    finding = partial(Finding, epoch, split)
    n_pos, n_neg = sum(task.n_pos for task in tasks), sum(task.n_neg for task in tasks)
    if pairs == "binary" and not (n_pos and n_neg):
        return finding(
            "one class",
            f"there are {n_pos} positives and {n_neg} negatives, so no pair to rank.",
            "Evaluate on rows of both classes: a stratified split has them.",
        )
    scores = [task.rows().scores for task in tasks if task.n_rows]
    # In the first epoch this is no problem: a linear model may start at zero.
    if epoch > 0 and len({bound for part in scores for bound in (part.min(), part.max())}) == 1:
        return finding(
            "constant",
            "every row has the same score: the network no longer depends on its input.",
            "Units that died in too large a step do not recover: start again with a learning rate "
            "10 times smaller, or with another activation than ReLU.",
        )
    return None


def check_loss(
    epoch: int, split: str, name: str, losses: Sequence[float],
    *, largest: float, chance: float, patience: int,
) -> Finding | None:  # fmt: skip
    """Return the problem of a loss, if there is one.

    Parameters
    ----------
    epoch : int
        The epoch of the last loss.
    split, name : str
    losses : sequence of float
        The loss of each epoch so far: finite or infinite, not NaN.
    largest : float
        The largest finite loss in the type that the training computes it in.
    chance : float
        The loss of a constant score.
    patience : int
        The number of rises in a row that is reported.
    """
    finding = partial(Finding, epoch, split, remedy=_LOWER_RATE)
    last, start = losses[-1], losses[0]
    higher = len(losses) > 1 and last >= max(losses[-2], start)
    recent = losses[-patience - 1 :]
    if last > largest:
        limit = f"{largest:.3g}, the largest number of its type in training"
        return finding("overflow", f"{name} is {last:.3g}, beyond {limit}.")
    if higher and last > _EXPLODED * chance > 0.0:
        times = f"{last / chance:.3g} times that of giving every row the same score"
        return finding("exploded", f"{name} is {last:.3g}, {times}.")
    if len(recent) > patience and last > start and all(a < b for a, b in pairwise(recent)):
        best = min(range(len(losses)), key=losses.__getitem__)
        return finding(
            "rising",
            f"{name} has risen {patience} epochs in a row to {last:.3g}, above its first value "
            f"{start:.3g}; its lowest was {losses[best]:.3g}, {len(losses) - 1 - best} epochs ago.",
        )
    return None
