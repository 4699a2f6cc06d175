"""When does a training go wrong, and what helps? Judged from one epoch's losses and scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everypair.torch.training.epoch_scores import Summary

__all__ = ["DivergenceError", "DivergenceWarning", "Finding", "judge_loss", "judge_scores"]

# A loss this many times that of a constant score is no fluctuation: even a network that ranks
# every pair the wrong way, with scores of ordinary size, stays below.
_EXPLODED = 10.0

_LOWER_RATE = (
    "Divide the learning rate by 10, or clip gradients with torch.nn.utils.clip_grad_norm_; check "
    "that inputs are scaled to about unit size."
)


class DivergenceWarning(UserWarning):
    """A training has gone wrong; the message says when, how, and what to try."""


class DivergenceError(RuntimeError):
    """The same, for those who asked to stop."""


@dataclass(frozen=True)
class Finding:
    """One thing that went wrong.

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


def judge_scores(epoch: int, split: str, scores: Summary, *, trained: bool) -> Iterator[Finding]:
    """Yield what is wrong with the scores of an epoch; `trained`: it is not the first one."""
    if scores.n_bad:
        yield Finding(
            epoch,
            split,
            "not finite",
            f"{scores.n_bad} of {scores.n} scores are NaN or infinite, first in batch "
            f"{scores.first_bad}.",
            f"The weights are lost: go back to an earlier checkpoint. {_LOWER_RATE}",
        )
    elif not scores.n_pos or not scores.n_neg:
        yield Finding(
            epoch,
            split,
            "one class",
            f"there are {scores.n_pos} positives and {scores.n_neg} negatives, so no pair to rank.",
            "Evaluate on rows of both classes: a stratified split has them.",
        )
    elif trained and scores.constant:
        yield Finding(
            epoch,
            split,
            "constant",
            "every row has the same score: the network no longer looks at its input.",
            "Units that died in a step too long do not come back: start again with a learning rate "
            "10 times smaller, or with another activation than ReLU.",
        )


def judge_loss(
    epoch: int,
    split: str,
    name: str,
    losses: Sequence[float],
    *,
    largest: float,
    chance: float,
    patience: int,
) -> Iterator[Finding]:
    """Yield what is wrong with a loss that has come as far as `losses`, one per epoch.

    Parameters
    ----------
    epoch : int
        Of the last of the losses.
    split, name : str
    losses : sequence of float
        Finite ones and infinite ones.
    largest : float
        The largest loss that training itself can hold.
    chance : float
        The loss of a constant score.
    patience : int
        How many rises in a row are too many.
    """
    last, start = losses[-1], losses[0]
    if last > largest:
        yield Finding(
            epoch,
            split,
            "overflow",
            f"{name} is {last:.3g}, beyond the {largest:.3g} that training can hold in its type.",
            _LOWER_RATE,
        )
        return
    higher = len(losses) > 1 and last >= max(losses[-2], start)
    if higher and last > _EXPLODED * chance > 0.0:
        yield Finding(
            epoch,
            split,
            "exploded",
            f"{name} is {last:.3g}, {last / chance:.3g} times that of giving every row the same "
            "score.",
            _LOWER_RATE,
        )
        return
    recent = losses[-patience - 1 :]
    rising = all(a < b for a, b in pairwise(recent))
    if len(recent) > patience and rising and last > start:
        best = min(range(len(losses)), key=losses.__getitem__)
        yield Finding(
            epoch,
            split,
            "rising",
            f"{name} has risen {patience} epochs in a row to {last:.3g}, above the {start:.3g} at "
            f"which it started; it was lowest, {losses[best]:.3g}, {len(losses) - 1 - best} epochs "
            "ago.",
            _LOWER_RATE,
        )
