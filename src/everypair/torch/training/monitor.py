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
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from everypair.inputs import pair_options
from everypair.losses import pair_loss
from everypair.streaming import PairAccumulator
from everypair.streaming.results import Options
from everypair.surrogates import Surrogate
from everypair.torch._inputs import Labels, check_integer
from everypair.torch.training import divergence
from everypair.torch.training.divergence import Finding
from everypair.torch.training.epoch_scores import EpochScores

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        self._running: dict[str, EpochScores] = {}

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
        scores_of = self._running.setdefault(split, EpochScores(self.pairs, self.censoring))
        scores_of.add(scores, labels, weights, groups)
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
        epoch, running = len(self.history), self._running
        values, findings = self._evaluated()
        record: dict[str, float] = {"epoch": epoch, **values}
        self.history.append(record)
        if self.writer is not None:
            for tag, value in values.items():
                self.writer.add_scalar(tag, value, epoch)
        if self.train_split in running:
            largest = running[self.train_split].largest_loss
            findings.append(self._check_training(epoch, self.train_split, largest))
        for finding in filter(None, findings):
            self._report(finding)
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

        def points(tag: str) -> list[tuple[float, ...]]:
            """Return the epochs and values of a tag."""
            pairs = ((record["epoch"], record[tag]) for record in self.history if tag in record)
            return list(zip(*pairs, strict=True))

        panels: dict[str, list[str]] = {}
        tags = dict.fromkeys(tag for record in self.history for tag in record if tag != "epoch")
        for tag in tags:
            if not tag.endswith(("/auc_low", "/auc_high")):
                panels.setdefault(tag.rpartition("/")[2], []).append(tag)
        figure = Figure(figsize=(4.5 * max(1, len(panels)), 3.2), layout="constrained")
        for place, (name, tags_of_panel) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(1, len(panels), place)
            for tag in tags_of_panel:
                axes.plot(*points(tag), marker=".", label=tag.rpartition("/")[0])  # gaps at NaN
                if f"{tag}_low" in tags:
                    (epochs, low), (_, high) = points(f"{tag}_low"), points(f"{tag}_high")
                    axes.fill_between(epochs, low, high, alpha=0.15)
            for finding in self.findings:
                axes.axvline(finding.epoch, color="0.6", linestyle="--", linewidth=1)
            drawn = [v for tag in tags_of_panel for v in points(tag)[1] if math.isfinite(v)]
            if name != "auc" and drawn and min(drawn) > 0 and max(drawn) > 100 * min(drawn):
                axes.set_yscale("log")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set(xlabel="epoch", ylabel=name.replace("_", " ") if name != "auc" else "AUC")
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

    def _evaluated(self) -> tuple[dict[str, float], list[Finding | None]]:
        """Return the metrics and the problem of each split, and forget the batches."""
        if not self._running:
            raise ValueError("an epoch must have at least one batch; call update() first.")
        metrics: dict[str, float] = {}
        findings = []
        for split, scores in self._running.items():
            rows, epoch = scores.rows(), len(self.history)
            finding = divergence.check_finite(epoch, split, rows, scores.sizes)
            tasks = [] if finding else list(scores.tasks(rows))
            findings.append(finding or divergence.check_rows(epoch, split, tasks, self.pairs))
            metrics |= {f"{split}/{name}": value for name, value in self._means(tasks).items()}
        self._running = {}
        return metrics, findings

    def _means(self, tasks: list[PairAccumulator]) -> dict[str, float]:
        """Return the means of the metrics over the tasks that have a pair; NaN if none has."""
        with_pairs = [metrics for metrics in map(self._metrics, tasks) if metrics]
        names = [*(surrogate.name for surrogate in self.surrogates), "auc"]
        names += [] if self.confidence is None else ["auc_low", "auc_high"]
        means = dict.fromkeys(names, math.nan)
        for name in names if with_pairs else ():
            if len(tasks) == 1 or name not in ("auc_low", "auc_high"):
                means[name] = math.fsum(task[name] for task in with_pairs) / len(with_pairs)
        return means

    def _metrics(self, task: PairAccumulator) -> dict[str, float]:
        """Return losses, AUC and the bounds of the AUC of one task; nothing without a pair."""
        try:
            result = task.result((), confidence=self.confidence)
        except ValueError:
            return {}
        metrics, rows = {"auc": result.auc}, task.rows()
        for name, bound in (("auc_low", result.low), ("auc_high", result.high)):
            metrics[name] = math.nan if bound is None else bound
        for loss in self.surrogates:
            try:
                metrics[loss.name] = pair_loss(
                    rows.scores, rows.labels, surrogate=loss, margin=self.margin, **rows.options
                )
            except OverflowError:
                metrics[loss.name] = math.inf
        return metrics

    def _check_training(self, epoch: int, split: str, largest: float) -> Finding | None:
        surrogate = self.surrogates[0]
        losses = self.values(split, surrogate.name)
        if math.isnan(losses[-1]):
            return None
        margin = surrogate.default_margin if self.margin is None else self.margin
        return divergence.check_loss(
            epoch, split, surrogate.name, [loss for loss in losses if not math.isnan(loss)],
            largest=largest, chance=float(surrogate.value(margin)), patience=self.patience,
        )  # fmt: skip

    def _report(self, finding: Finding) -> None:
        if any((f.split, f.kind) == (finding.split, finding.kind) for f in self.findings):
            return
        self.findings.append(finding)
        if self.on_divergence == "raise":
            raise divergence.DivergenceError(str(finding))
        if self.on_divergence == "warn":
            warnings.warn(str(finding), divergence.DivergenceWarning, stacklevel=3)
