"""The result of a stream, and how metrics and losses become one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from everypair import surrogates
from everypair.metrics._delong import interval, normal_quantile
from everypair.streaming._rank_sums import RankSums
from everypair.surrogates import Surrogate

Surrogates: TypeAlias = str | Surrogate | Iterable[str | Surrogate]


@dataclass(frozen=True)
class StreamResult:
    """Losses and metrics of all rows of a stream.

    Attributes
    ----------
    n_pos, n_neg : int
        Rows of each class.
    auc : float
    auc_bound : float
        The true AUC differs from `auc` by this at most; 0 if it is exact.
    variance, low, high : float or None
        DeLong's variance of the AUC, and the confidence interval. If the AUC has a bound, the
        interval is that of the buckets, widened by the bound. None with groups, or if a class has
        fewer than two rows of positive weight.
    partial_auc, partial_auc_bound : float or None
        None unless `max_fpr` or `min_tpr` was given.
    losses, loss_bounds : dict of str to float
        By the name of the surrogate: the mean over all pairs that count, and its largest error.
    """

    n_pos: int
    n_neg: int
    auc: float
    auc_bound: float = 0.0
    variance: float | None = None
    low: float | None = None
    high: float | None = None
    partial_auc: float | None = None
    partial_auc_bound: float | None = None
    losses: dict[str, float] = field(default_factory=dict)
    loss_bounds: dict[str, float] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        """Rows of both classes."""
        return self.n_pos + self.n_neg


@dataclass(frozen=True)
class Options:
    """The options of `PairAccumulator.result`, checked."""

    surrogates: tuple[Surrogate, ...]
    margin: float | None
    max_fpr: float | None
    min_tpr: float | None
    confidence: float

    @property
    def is_partial(self) -> bool:
        """Whether a partial AUC is wanted."""
        return self.max_fpr is not None or self.min_tpr is not None


def options(
    chosen: Surrogates,
    margin: float | None = None,
    max_fpr: float | None = None,
    min_tpr: float | None = None,
    confidence: float = 0.95,
) -> Options:
    """Check the options of a result."""
    given = (chosen,) if isinstance(chosen, str | Surrogate) else tuple(chosen)
    normal_quantile(confidence)
    return Options(tuple(map(surrogates.get, given)), margin, max_fpr, min_tpr, confidence)


def from_ranks(
    sums: RankSums,
    wanted: Options,
    losses: dict[str, float],
    loss_bounds: dict[str, float] | None = None,
    *,
    blocks_are_ties: bool = True,
) -> StreamResult:
    """Return the result of unweighted rows; without `blocks_are_ties`, with bounds."""
    bound = 0.0 if blocks_are_ties else sums.auc_bound
    variance, low, high = sums.variance, None, None
    if variance is not None:
        low, high = interval(sums.auc, variance, normal_quantile(wanted.confidence), "normal")
        low, high = max(low - bound, 0.0), min(high + bound, 1.0)
    partial_bound = 0.0 if blocks_are_ties and sums.is_partial else sums.partial_auc_bound
    return StreamResult(
        sums.n_pos, sums.n_neg, sums.auc, bound, variance, low, high,
        sums.partial_auc, partial_bound, losses, loss_bounds or dict.fromkeys(losses, 0.0),
    )  # fmt: skip
