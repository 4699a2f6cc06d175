"""Loss and AUC of whole data sets after every epoch, with warnings when a training diverges.

The mean of the losses of batches depends on the batch size, and a mean of the AUCs of batches is
not the AUC. The monitor keeps the scores of an epoch instead, and computes both exactly, over all
pairs.
"""

from __future__ import annotations

import csv
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from everypair.inputs import pair_options
from everypair.losses import pair_loss
from everypair.streaming import PairAccumulator
from everypair.streaming.results import Options
from everypair.surrogates import Surrogate
from everypair.torch._inputs import Labels, check_integer
from everypair.torch.training.epoch_scores import Columns, EpochScores, known

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Problem = tuple[str, str]
"""The kind of a `Finding`, and what happened."""

# A loss is too large at this many times that of a constant score. Scores of ordinary size stay
# below it even if every pair is in the wrong order.
_EXPLODED = 10.0

_LOWER_RATE = (
    "Divide the learning rate by 10, or clip gradients with torch.nn.utils.clip_grad_norm_; check "
    "that inputs are scaled to about unit size."
)
_REMEDIES = dict.fromkeys(("overflow", "exploded", "rising"), _LOWER_RATE) | {
    "not finite": "The model's weights cannot be used: go back to an earlier checkpoint. "
    f"{_LOWER_RATE}",
    "constant": "Units that died in too large a step do not recover: start again with a learning "
    "rate 10 times smaller, or with another activation than ReLU.",
    "one class": "Evaluate on rows of both classes: a stratified split has them.",
}


class DivergenceWarning(UserWarning):
    """A training has diverged; the message says when, how, and what to try."""


class DivergenceError(RuntimeError):
    """A training has diverged, and `EpochMonitor` was made with ``on_divergence="raise"``."""


@dataclass(frozen=True)
class Finding:
    """One problem of a training. As a text it also says what to try.

    Attributes
    ----------
    epoch : int
    split : str
    kind : {"not finite", "overflow", "exploded", "rising", "constant", "one class"}
    what : str
        What happened.
    """

    epoch: int
    split: str
    kind: str
    what: str

    def __str__(self) -> str:
        return f"epoch {self.epoch}, {self.split}: {self.what} {_REMEDIES[self.kind]}"


class EpochMonitor:
    """Loss and AUC over all pairs of a subtrain and a validation set, every epoch.

    Parameters
    ----------
    surrogates : sequence of str or Surrogate
        The losses to compute. The first one is checked for divergence.
    margin : float, optional
        The margin of all losses. By default each surrogate has its own.
    patience : int
        A training loss that rises in this many epochs in a row is reported.
    train_split : str, optional
        The split whose loss is checked for divergence. The default is that of the first `update`.
    confidence : float, optional
        Also record the confidence interval of `everypair.delong` with this coverage, for example
        0.95. It takes one more sort, and is NaN with several tasks, with groups or without pairs.
    on_divergence : {"warn", "raise", "ignore"}
        What to do when a training diverges. In each case `findings` records it.
    writer : object with add_scalar, optional
        Records every number under the tag ``split/name``, like TensorBoard's SummaryWriter.
    pairs, censoring
        What labels are, as in `pair_loss`. The AUC is the concordance index of other targets.

    Attributes
    ----------
    history : list of dict
        One dict per epoch: ``epoch``, then ``split/surrogate`` and ``split/auc`` for each split,
        and with a confidence ``split/auc_low`` and ``split/auc_high``.
    findings : list of Finding
        The problems found, their epochs and what to try; each kind is reported once per split.

    Notes
    -----
    Losses are means over all pairs, hence non-negative and comparable between batch sizes,
    samplers and epochs. A split with one class, or with scores that are NaN or infinite, has NaN.
    With several tasks the value is the mean over the tasks that have both classes.

    Scores are kept on their device until `end_epoch`, which takes about 8 bytes per row; `update`
    does not wait for the device.

    Examples
    --------
    >>> import torch
    >>> monitor = EpochMonitor(surrogates=("squared_hinge", "linear_hinge"))
    >>> monitor.update("subtrain", torch.tensor([0.5, 2.0]), torch.tensor([1, 1]))
    >>> monitor.update("subtrain", torch.tensor([0.0, 1.0]), torch.tensor([0, 0]))
    >>> record = monitor.end_epoch()
    >>> record["subtrain/squared_hinge"], record["subtrain/linear_hinge"], record["subtrain/auc"]
    (0.625, 0.5, 0.75)
    """

    def __init__(
        self,
        surrogates: Sequence[str | Surrogate] = ("squared_hinge",),
        *,
        margin: float | None = None,
        patience: int = 3,
        train_split: str | None = None,
        confidence: float | None = None,
        on_divergence: Literal["warn", "raise", "ignore"] = "warn",
        writer: Any = None,
        pairs: Literal["binary", "ordered", "survival"] = "binary",
        censoring: Literal["harrell", "uno"] = "harrell",
    ) -> None:
        pair_options.check_pairs(pairs, censoring)
        self.pairs, self.censoring = pairs, censoring
        self.surrogates = Options(surrogates, margin, confidence=confidence).surrogates
        if not self.surrogates:
            raise ValueError("surrogates must hold at least one; got none.")
        self.margin, self.confidence = margin, confidence
        if on_divergence not in ("warn", "raise", "ignore"):
            raise ValueError(
                f"on_divergence must be 'warn', 'raise' or 'ignore'; got {on_divergence!r}."
            )
        if writer is not None and not hasattr(writer, "add_scalar"):
            raise ValueError(
                f"writer must have a method add_scalar(tag, value, step); got "
                f"{type(writer).__name__}. TensorBoard's SummaryWriter has one."
            )
        self.patience = check_integer("patience", patience, at_least=1)
        self.train_split = train_split
        self.on_divergence = on_divergence
        self.writer = writer
        self.history: list[dict[str, float]] = []
        self.findings: list[Finding] = []
        self._epoch_scores: dict[str, EpochScores] = {}

    @property
    def advice(self) -> str:
        """The problems found so far and what to try, one line each; empty if there are none."""
        return "\n".join(map(str, self.findings))

    def update(
        self,
        split: str,
        scores: Tensor,
        labels: Labels,
        weights: Tensor | None = None,
        groups: Tensor | None = None,
    ) -> None:
        """Add a batch of a split to the current epoch.

        Parameters
        ----------
        split : str
            For example "subtrain" or "validation".
        scores : (n,), (n, 1) or (n, tasks) floating
            May require gradients. Call this before the loss, so that scores that make the loss
            raise are recorded too.
        labels : of the shape of the scores
            Coded {0, 1}, {-1, +1} or bool; NaN where the label of a task is missing. Other labels
            according to `pairs`, as in the loss.
        weights, groups : (n,), optional
            As in the loss.
        """
        scores_of = self._epoch_scores.get(split) or EpochScores(self.pairs, self.censoring)
        scores_of.add(scores, labels, weights, groups)
        self._epoch_scores[split] = scores_of
        if self.train_split is None:
            self.train_split = split

    def end_epoch(self) -> dict[str, float]:
        """Evaluate the batches since the last call, and record the results.

        Returns
        -------
        dict
            The new last entry of `history`.

        Raises
        ------
        DivergenceError
            If the training diverged and `on_divergence` is "raise". The record is kept.
        """
        epoch, epoch_scores = len(self.history), self._epoch_scores
        values, problems = self._evaluated()
        record: dict[str, float] = {"epoch": epoch, **values}
        self.history.append(record)
        if self.writer is not None:
            for tag, value in values.items():
                self.writer.add_scalar(tag, value, epoch)
        if self.train_split in epoch_scores:
            dtype = torch.promote_types(
                epoch_scores[self.train_split].batches[0][0].dtype, torch.float32
            )
            problems.append((self.train_split, self._loss_problem(torch.finfo(dtype).max)))
        for split, problem in problems:
            if problem is not None:
                self._report(Finding(epoch, split, *problem))
        return record

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the batches since the last call, without recording an epoch."""
        return self._evaluated()[0]

    def values(self, split: str, name: str) -> list[float]:
        """Return one quantity per epoch, for example ``values("validation", "auc")``."""
        tag = f"{split}/{name}"
        values = [record[tag] for record in self.history if tag in record]
        if not values:
            tags = sorted({tag for record in self.history for tag in record} - {"epoch"})
            raise ValueError(f"split and name must be among {tags}; got {tag!r}.")
        return values

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the history, with one row per epoch and one column per quantity."""
        columns = list(dict.fromkeys(tag for record in self.history for tag in record))
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns or ["epoch"])
            writer.writeheader()
            writer.writerows(self.history)

    def plot(self) -> Figure:
        """Plot one panel per quantity and one line per split, with a dashed line at each finding.

        The confidence interval of the AUC is a band. The figure belongs to no window; save it, or
        show it in a notebook. Needs matplotlib.
        """
        try:
            from matplotlib.figure import Figure
            from matplotlib.ticker import MaxNLocator
        except ImportError:
            raise ImportError(
                "matplotlib is needed to plot curves: pip install matplotlib. "
                "Without it, to_csv() writes the same numbers."
            ) from None

        panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
        for record in self.history:
            for tag, value in record.items():
                split, _, name = tag.rpartition("/")
                if split:
                    epochs, values = panels.setdefault(name, {}).setdefault(split, ([], []))
                    epochs.append(record["epoch"])
                    values.append(value)
        lows, highs = panels.pop("auc_low", {}), panels.pop("auc_high", {})
        figure = Figure(figsize=(4.5 * max(1, len(panels)), 3.2), layout="constrained")
        for place, (name, curves) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(1, len(panels), place)
            for split, (epochs, values) in curves.items():
                axes.plot(epochs, values, marker=".", label=split)  # gaps at NaN
                if name == "auc" and split in lows:
                    axes.fill_between(lows[split][0], lows[split][1], highs[split][1], alpha=0.15)
            for finding in self.findings:
                axes.axvline(finding.epoch, color="0.6", linestyle="--", linewidth=1)
            finite = [v for _, values in curves.values() for v in values if math.isfinite(v)]
            if name != "auc" and finite and 0 < 100 * min(finite) < max(finite):
                axes.set_yscale("log")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set(xlabel="epoch", ylabel="AUC" if name == "auc" else name.replace("_", " "))
            axes.legend()
        return figure

    def state_dict(self) -> dict[str, Any]:
        """Return history and findings as built-in types, for a checkpoint."""
        return {
            "history": [dict(record) for record in self.history],
            "findings": [asdict(finding) for finding in self.findings],
            "train_split": self.train_split,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the epochs of a saved state."""
        self.history = [dict(record) for record in state["history"]]
        self.findings = [Finding(**finding) for finding in state["findings"]]
        self.train_split = state["train_split"]

    def _evaluated(self) -> tuple[dict[str, float], list[tuple[str, Problem | None]]]:
        """Return the metrics and the problem of each split, and forget the batches."""
        if not self._epoch_scores:
            raise ValueError("an epoch must have at least one batch; call update() first.")
        metrics: dict[str, float] = {}
        problems = []
        for split, scores in self._epoch_scores.items():
            rows = scores.joined()
            problem = _finite_problem(rows, [batch[0].shape[-1] for batch in scores.batches])
            tasks = [] if problem else scores.tasks(rows)
            problems.append((split, problem or self._rank_problem(tasks)))
            metrics |= {f"{split}/{name}": value for name, value in self._means(tasks).items()}
        self._epoch_scores = {}
        return metrics, problems

    def _means(self, tasks: list[PairAccumulator]) -> dict[str, float]:
        """Return the means of the metrics over the tasks that have them; NaN if none has."""
        names = [*(surrogate.name for surrogate in self.surrogates), "auc"]
        names += [] if self.confidence is None else ["auc_low", "auc_high"]
        confidence = self.confidence if len(tasks) == 1 else None
        metrics = [self._metrics(task, confidence) for task in tasks]
        columns = {name: [task[name] for task in metrics if name in task] for name in names}
        return {
            name: math.fsum(values) / len(values) if values else math.nan
            for name, values in columns.items()
        }

    def _metrics(self, task: PairAccumulator, confidence: float | None) -> dict[str, float]:
        """Return the metrics that one task has: without a pair none."""
        try:
            result = task.result((), confidence=confidence)
        except ValueError:
            return {}
        metrics, rows = {"auc": result.auc}, task.rows()
        if result.low is not None and result.high is not None:
            metrics |= {"auc_low": result.low, "auc_high": result.high}
        for loss in self.surrogates:
            try:
                metrics[loss.name] = pair_loss(
                    rows.scores, rows.labels, surrogate=loss, margin=self.margin, **rows.options
                )
            except OverflowError:
                metrics[loss.name] = math.inf
        return metrics

    def _rank_problem(self, tasks: Sequence[PairAccumulator]) -> Problem | None:
        """Return the problem of rows that cannot be ranked, or that the model does not rank."""
        n_pos, n_neg = sum(task.n_pos for task in tasks), sum(task.n_neg for task in tasks)
        if self.pairs == "binary" and not (n_pos and n_neg):
            reason = f"there are {n_pos} positives and {n_neg} negatives, so no pair to rank."
            return "one class", reason
        scores = [task.rows().scores for task in tasks if task.n_rows]
        bounds = {bound for part in scores for bound in (part.min(), part.max())}
        # In the first epoch this is no problem: a linear model may start at zero.
        if self.history and len(bounds) == 1:
            reason = "every row has the same score: the network no longer depends on its input."
            return "constant", reason
        return None

    def _loss_problem(self, largest: float) -> Problem | None:
        """Return the problem of the training loss; `largest` is that of its type in training."""
        surrogate = self.surrogates[0]
        values, name = self.values(str(self.train_split), surrogate.name), surrogate.name
        if math.isnan(values[-1]):
            return None
        losses = [loss for loss in values if not math.isnan(loss)]
        chance = pair_loss([0.0, 0.0], [1, 0], surrogate=surrogate, margin=self.margin)
        last, start, recent = losses[-1], losses[0], losses[-self.patience - 1 :]
        if last > largest:
            limit = f"{largest:.3g}, the largest number of its type in training"
            return "overflow", f"{name} is {last:.3g}, beyond {limit}."
        higher = len(losses) > 1 and last >= max(losses[-2], start)
        if higher and last > _EXPLODED * chance > 0.0:
            times = f"{last / chance:.3g} times that of giving every row the same score"
            return "exploded", f"{name} is {last:.3g}, {times}."
        rises = len(recent) > self.patience and all(a < b for a, b in pairwise(recent))
        if rises and last > start:
            best = losses.index(min(losses))
            return "rising", (
                f"{name} has risen {self.patience} epochs in a row to {last:.3g}, above its first "
                f"value {start:.3g}; its lowest was {losses[best]:.3g}, "
                f"{len(losses) - 1 - best} epochs ago."
            )
        return None

    def _report(self, finding: Finding) -> None:
        if any((f.split, f.kind) == (finding.split, finding.kind) for f in self.findings):
            return
        self.findings.append(finding)
        if self.on_divergence == "raise":
            raise DivergenceError(str(finding))
        if self.on_divergence == "warn":
            warnings.warn(str(finding), DivergenceWarning, stacklevel=3)


def _finite_problem(rows: Columns, sizes: Sequence[int]) -> Problem | None:
    """Return the problem of scores that are NaN or infinite; `sizes` are those of the batches."""
    relevant = known(rows)
    bad = relevant & ~rows[0].isfinite()
    if not bad.any():
        return None
    row = bad.reshape(-1, bad.shape[-1]).any(0).int().argmax()
    batch = int(torch.searchsorted(torch.tensor(sizes).cumsum(0), row, right=True))
    n_bad, n = int(bad.sum()), int(relevant.sum())
    return "not finite", f"{n_bad} of {n} scores are NaN or infinite, first in batch {batch}."
