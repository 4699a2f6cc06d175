"""Losses and metrics over all pairs as a metric of TorchMetrics.

It is loaded only if this module is imported. The state of the metric is rows or buckets, and
`everypair.streaming` computes.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

try:
    from torchmetrics import Metric
except ImportError as error:
    raise ImportError(
        "everypair.torch.metrics needs TorchMetrics. Install it with: pip install torchmetrics"
    ) from error

from everypair.streaming import PairAccumulator
from everypair.streaming.results import Options, Surrogates

__all__ = ["PairMetric"]


class PairMetric(Metric):
    """AUC, its confidence interval, partial AUC and losses over all pairs of an epoch.

    TorchMetrics synchronises it across the processes of ``torch.distributed``: the pairs are those
    of all rows on all ranks, not an average over ranks. `everypair.torch.AUCMetric` is the metric
    for loops without TorchMetrics, and for groups, weights, graded targets or survival times.

    Parameters
    ----------
    surrogates, margin, max_fpr, min_tpr, confidence
        Those of `everypair.PairAccumulator.result`.
    mode : {"exact", "bounded"}
        "exact" keeps the scores, and sends all of them when ranks are synchronised. "bounded" keeps
        a table of ``2**bits`` buckets and sends that: 48 bytes a bucket, whatever the number of
        rows.
    bits : int
        That of `everypair.PairAccumulator`.
    **kwargs
        Those of ``torchmetrics.Metric``.

    Notes
    -----
    ``update(preds, target)`` takes scores and binary labels of shape (n,) or (n, 1).
    ``compute()`` returns a dict of float64 tensors: "auc", "auc_bound", "auc_low", "auc_high" (NaN
    if a class has fewer than two rows), "partial_auc" if a rate was given, and the losses by name.

    Examples
    --------
    >>> metric = PairMetric()
    >>> metric.update(torch.tensor([0.5, 0.0]), torch.tensor([1, 0]))
    >>> metric.update(torch.tensor([2.0, 1.0]), torch.tensor([1, 0]))
    >>> values = metric.compute()
    >>> values["auc"].item(), values["squared_hinge"].item()
    (0.75, 0.625)
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    # The states. Those of a list become one tensor when ranks are synchronised.
    negatives: Any
    positives: Any
    table: Tensor
    n_rounded: Tensor

    def __init__(
        self,
        *,
        surrogates: Surrogates = "squared_hinge",
        margin: float | None = None,
        max_fpr: float | None = None,
        min_tpr: float | None = None,
        confidence: float = 0.95,
        mode: Literal["exact", "bounded"] = "exact",
        bits: int = 18,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.options: dict[str, Any] = {"surrogates": surrogates, "margin": margin}
        self.options |= {"max_fpr": max_fpr, "min_tpr": min_tpr, "confidence": confidence}
        Options(**self.options)  # checks them
        PairAccumulator(mode=mode, bits=bits)  # checks both
        self.mode, self.bits = mode, bits
        if mode == "exact":
            self.add_state("negatives", default=[], dist_reduce_fx="cat")
            self.add_state("positives", default=[], dist_reduce_fx="cat")
        else:
            for name, shape in (("table", (2, 1 << bits, 3)), ("n_rounded", ())):
                counts = torch.zeros(shape, dtype=torch.int64)
                self.add_state(name, default=counts, dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add rows."""
        rows = PairAccumulator(mode=self.mode, bits=self.bits)
        rows.add(preds.detach().cpu(), target.detach().cpu())
        if self.mode == "bounded":
            plain, arrays = rows.state()
            used = torch.from_numpy(arrays["used"]).to(self.table.device)
            self.table[:, used] += torch.from_numpy(arrays["table"]).to(self.table.device)
            self.n_rounded += plain["is_rounded"]
        elif rows.n_rows:
            sorted_rows = rows.rows()
            scores = torch.from_numpy(sorted_rows.scores).to(preds.device)
            self.positives.append(scores[: sorted_rows.n_pos])
            self.negatives.append(scores[sorted_rows.n_pos :])

    def compute(self) -> dict[str, Tensor]:
        """Return the losses and metrics of all rows."""
        result = self._rows().result(**self.options)
        values: dict[str, float | None] = {"auc": result.auc, "auc_bound": result.auc_bound}
        values |= {"auc_low": result.low, "auc_high": result.high}
        if result.partial_auc is not None:
            values["partial_auc"] = result.partial_auc
        return {
            name: torch.tensor(math.nan if value is None else value, dtype=torch.float64)
            for name, value in (values | result.losses).items()
        }

    def _rows(self) -> PairAccumulator:
        """Return the rows of all batches; after synchronisation, those of all ranks."""
        if self.mode == "bounded":
            plain = {"mode": "bounded", "bits": self.bits, "is_rounded": bool(self.n_rounded)}
            arrays = {"used": np.arange(1 << self.bits), "table": self.table.cpu().numpy()}
            return PairAccumulator.from_state(plain, arrays)
        rows = PairAccumulator()
        for parts, label in ((self.positives, True), (self.negatives, False)):
            for scores in [parts] if isinstance(parts, Tensor) else parts:
                rows.add(scores.cpu(), np.full(scores.shape[0], label))
        return rows
