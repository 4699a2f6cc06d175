"""Results of a stream: the options, and how sorted rows or counts of ranks become a result."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypedDict

from everypair import surrogates as builtin
from everypair.inputs import pair_options
from everypair.losses import pair_loss
from everypair.metrics import auc, delong, partial_auc
from everypair.metrics.influences import interval, normal_quantile
from everypair.streaming.rank_sums import RankMetrics, rank_metrics, sorted_blocks
from everypair.streaming.stream_rows import SortedRows, is_parallel
from everypair.surrogates import Surrogate

Surrogates: TypeAlias = str | Surrogate | Iterable[str | Surrogate]


class ResultOptions(TypedDict, total=False):
    """The parameters of `PairAccumulator.result`."""

    surrogates: Surrogates
    margin: float | None
    max_fpr: float | None
    min_tpr: float | None
    confidence: float | None


class Options:
    """The options of a result, checked.

    Attributes
    ----------
    surrogates : tuple of Surrogate
    margin : float or None
    rates : (float, float) or None
        `max_fpr` and `min_tpr`; None without a partial AUC.
    confidence : float or None
        None without an interval.
    """

    def __init__(
        self,
        surrogates: Surrogates = "squared_hinge",
        margin: float | None = None,
        max_fpr: float | None = None,
        min_tpr: float | None = None,
        confidence: float | None = 0.95,
    ) -> None:
        chosen = (surrogates,) if isinstance(surrogates, str | Surrogate) else surrogates
        self.surrogates = tuple(map(builtin.get, chosen))
        self.margin = margin if margin is None else pair_options.check_margin(margin)
        self.confidence, self.rates = confidence, None
        if confidence is not None:
            normal_quantile(confidence)  # raises if it is not between 0 and 1
        if max_fpr is not None or min_tpr is not None:
            self.rates = (
                pair_options.check_rate(
                    1.0 if max_fpr is None else max_fpr, "max_fpr", 1.0, closed=False
                ),
                pair_options.check_rate(0.0 if min_tpr is None else min_tpr, "min_tpr", 0.0),
            )


@dataclass(frozen=True)
class StreamResult:
    """Losses and metrics of all rows of a stream.

    Attributes
    ----------
    n_pos, n_neg : int
        Rows of each class; without classes, 0 and the number of rows.
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


def of_rows(rows: SortedRows, options: Options) -> StreamResult:
    """Compute the exact losses and metrics of sorted rows."""
    n_pos, n = rows.n_pos, rows.scores.shape[0]
    sizes = n_pos, n - n_pos
    if rows.weights is None and rows.groups is None and rows.targets is None:
        blocks = sorted_blocks(rows.scores[:n_pos], rows.scores[n_pos:])
        if not is_parallel(n):
            ranks = rank_metrics(blocks, sizes, options.rates)
            return of_ranks(ranks, sizes, options, _losses(rows, options))
        # Ranks need one thread. Losses use several, but not all of the time.
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(rank_metrics, blocks, sizes, options.rates)
            losses = _losses(rows, options)
            return of_ranks(future.result(), sizes, options, losses)
    data, part, variance = (rows.scores, rows.labels), None, None
    area = auc(*data, **rows.options)
    if options.rates is not None:
        pair_options.check_rates(*options.rates, rows.pairs)
        max_fpr, min_tpr = options.rates
        columns: Any = {"weights": rows.weights, "groups": rows.groups}
        part = partial_auc(*data, max_fpr=max_fpr, min_tpr=min_tpr, **columns)
    if rows.groups is None and options.confidence is not None:
        with suppress(ValueError):  # fewer than two rows of positive weight
            variance = delong(*data, **rows.options).variance
    ranks = RankMetrics(area, 0.0, variance, part, None)
    return of_ranks(ranks, sizes, options, _losses(rows, options))


def of_ranks(
    ranks: RankMetrics,
    sizes: tuple[int, int],
    options: Options,
    losses: dict[str, float],
    loss_bounds: dict[str, float] | None = None,
) -> StreamResult:
    """Return a result; with `loss_bounds`, metrics have bounds: rows of a block are not ties."""
    if loss_bounds is None:
        ranks = ranks._replace(auc_bound=0.0, partial_auc_bound=0.0 if options.rates else None)
    low = high = None
    if ranks.variance is not None and options.confidence is not None:
        quantile = normal_quantile(options.confidence)
        low, high = interval(ranks.auc, ranks.variance, quantile, "normal")
        low, high = max(low - ranks.auc_bound, 0.0), min(high + ranks.auc_bound, 1.0)
    loss_bounds = loss_bounds or dict.fromkeys(losses, 0.0)
    return StreamResult(
        *sizes, **ranks._asdict(), low=low, high=high, losses=losses, loss_bounds=loss_bounds
    )


def _losses(rows: SortedRows, options: Options) -> dict[str, float]:
    return {
        surrogate.name: pair_loss(
            rows.scores, rows.labels, surrogate=surrogate, margin=options.margin, **rows.options
        )
        for surrogate in options.surrogates
    }
