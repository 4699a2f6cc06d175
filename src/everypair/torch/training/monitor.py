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

from everypair import surrogates as _surrogates
from everypair.inputs import pair_options
from everypair.metrics.influences import normal_quantile
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
        given = (surrogates,) if isinstance(surrogates, str) else surrogates
        self.surrogates = tuple(_surrogates.get(surrogate) for surrogate in given)
        if not self.surrogates:
            raise ValueError("surrogates must hold at least one; got none.")
        self.margin = None if margin is None else pair_options.check_margin(margin)
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
        if confidence is not None:
            normal_quantile(confidence)  # raises if it is not between 0 and 1
        self.confidence = confidence
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
        values, findings = self._measured()
        record: dict[str, float] = {"epoch": epoch, **values}
        self.history.append(record)
        if self.writer is not None:
            for tag, value in record.items():
                if tag != "epoch":
                    self.writer.add_scalar(tag, value, epoch)
        if self.train_split in running:
            largest = running[self.train_split].largest_loss
            findings.append(self._check_training(epoch, self.train_split, largest))
        for finding in findings:
            if finding is not None:
                self._report(finding)
        return record

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the batches since the last call, without recording an epoch."""
        return self._measured()[0]

    def _measured(self) -> tuple[dict[str, float], list[Finding | None]]:
        """Return the metrics of all splits and what was found, and forget the batches."""
        if not self._running:
            raise ValueError("an epoch must have at least one batch; call update() first.")
        found: dict[str, float] = {}
        findings = []
        options = self.surrogates, self.margin, self.confidence
        for split, scores in self._running.items():
            metrics, finding = scores.evaluate(len(self.history), split, *options)
            found |= {f"{split}/{name}": value for name, value in metrics.items()}
            findings.append(finding)
        self._running = {}
        return found, findings

    def values(self, split: str, name: str) -> list[float]:
        """Return one quantity per epoch, for example ``values("validation", "auc")``."""
        tag = f"{split}/{name}"
        known = [record[tag] for record in self.history if tag in record]
        if not known:
            tags = sorted({tag for record in self.history for tag in record} - {"epoch"})
            raise ValueError(f"split and name must be among {tags}; got {tag!r}.")
        return known

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
        tags = dict.fromkeys(tag for record in self.history for tag in record if tag != "epoch")
        panels: dict[str, list[str]] = {}
        for tag in tags:
            if not tag.endswith(("/auc_low", "/auc_high")):
                panels.setdefault(tag.rpartition("/")[2], []).append(tag)
        figure = Figure(figsize=(4.5 * max(1, len(panels)), 3.2), layout="constrained")
        for place, (name, tags_of_panel) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(1, len(panels), place)
            drawn: list[float] = []
            for tag in tags_of_panel:
                points = [(r["epoch"], r[tag]) for r in self.history if tag in r]
                # NaN leaves a gap.
                axes.plot(*zip(*points, strict=True), marker=".", label=tag.rpartition("/")[0])
                drawn += [value for _, value in points if math.isfinite(value)]
                if f"{tag}_low" in tags:
                    bounds = [
                        (r["epoch"], r[f"{tag}_low"], r[f"{tag}_high"])
                        for r in self.history
                        if f"{tag}_low" in r
                    ]
                    epochs, low, high = zip(*bounds, strict=True)
                    axes.fill_between(epochs, low, high, alpha=0.15)
            for finding in self.findings:
                axes.axvline(finding.epoch, color="0.6", linestyle="--", linewidth=1)
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

    def _check_training(self, epoch: int, split: str, largest: float) -> Finding | None:
        surrogate = self.surrogates[0]
        losses = self.values(split, surrogate.name)
        margin = surrogate.default_margin if self.margin is None else self.margin
        if math.isnan(losses[-1]):
            return None
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
