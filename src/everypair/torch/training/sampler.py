"""Batches that always hold both classes.

An epoch is a plan (how many rows of each class every batch takes) and an order of the rows of each
class. The order depends on the seed and the number of the epoch only, so that ranks agree without
communication, and a run can resume from two integers.

>>> sampler = StratifiedBatchSampler([1, 0, 0, 0, 0, 0, 0], batch_size=3, shuffle=False)
>>> list(sampler)
[[1, 0, 2], [3, 0, 4], [5, 0, 6]]
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Sampler

from everypair.inputs import binary, pair_options, ranked, survival
from everypair.torch._inputs import check_integer

Rows = NDArray[np.int64]


class StratifiedBatchSampler(Sampler[list[int]]):
    """Batches of row numbers with rows of both classes, for ``DataLoader(batch_sampler=...)``.

    In an epoch every row of the larger class is used once. Rows of the smaller class are used once
    too if there are enough of them. Otherwise they are repeated in turn, as often as needed; the
    numbers of repetitions differ by at most one. Batches have nearly equal sizes, at most
    `batch_size`.

    Parameters
    ----------
    labels : (n,)
        The labels of all rows of the dataset, coded {0, 1}, {-1, +1} or bool.
    batch_size : int
        The largest number of rows in a batch, on one rank.
    pairs : {"binary", "ordered", "survival"}
        What labels are, as in `pair_loss`. The two classes of ordered targets are those above and
        below the cut between two targets that is nearest to the middle of the rows: with many
        zeros, zero and all others. Those of survival labels are events and censored rows.
    min_per_class : int
        The smallest number of rows of each class in a batch.
    positives : float or int, optional
        A fixed share of positives in every batch (a float between 0 and 1) or a fixed number of
        them (an int). The default is the share in the data, but at least `min_per_class`. The class
        that needs more batches is then the one that is used once.
    shuffle : bool
        Draw a new order every epoch; otherwise rows come in the order of the data.
    drop_last : bool
        Return only batches of exactly `batch_size` rows. The remaining rows, which are of the
        larger class, are left out; they are other rows in each epoch.
    seed : int
        Seeds the sampler's own generators; the global ones are not used. The same on all ranks.
    rank, world_size : int
        The number of this process and the number of processes in distributed training. Each rank
        has its own batches, and all ranks have the same number of them.
    stratify : {"rank", "global"}
        What has both classes: the batch of each rank, or the global batch, which is divided among
        the ranks. "global" is for losses over the pairs of all ranks, such as
        ``PairLoss(process_group="world")``: `min_per_class` and `positives` then refer to the
        global batch of up to ``batch_size * world_size`` rows, so that rare rows need not be
        repeated for each rank.

    Notes
    -----
    Every pass over the sampler is a new epoch; `epoch` is the number of the next one, and
    `set_epoch` sets it. Preparing an epoch takes O(n) time, about 20 ms for a million rows.

    A row appears twice in one batch only if its class has fewer rows than the batch needs. If
    `min_per_class` needs more rows than both classes have, rows of the larger class are repeated
    too.

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> X = torch.randn(1000, 4)
    >>> y = torch.zeros(1000)
    >>> y[:3] = 1
    >>> sampler = StratifiedBatchSampler(y, batch_size=100, min_per_class=2)
    >>> loader = DataLoader(TensorDataset(X, y), batch_sampler=sampler)
    >>> [int(labels.sum()) for _, labels in loader]
    [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    """

    def __init__(
        self,
        labels: ArrayLike | torch.Tensor | tuple[Any, Any],
        batch_size: int,
        *,
        pairs: Literal["binary", "ordered", "survival"] = "binary",
        min_per_class: int = 1,
        positives: float | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        stratify: Literal["rank", "global"] = "rank",
    ) -> None:
        self.batch_size = check_integer("batch_size", batch_size, at_least=2)
        self.min_per_class = check_integer("min_per_class", min_per_class, at_least=1)
        self.world_size = check_integer("world_size", world_size, at_least=1)
        self.rank = check_integer("rank", rank, at_least=0)
        self.seed = check_integer("seed", seed, at_least=0)
        self.shuffle, self.drop_last, self.epoch = bool(shuffle), bool(drop_last), 0
        if self.rank >= self.world_size:
            raise ValueError(
                f"rank must be less than world_size; got rank {rank} of {world_size}. "
                "Ranks count from 0."
            )
        if stratify not in ("rank", "global"):
            raise ValueError(f"stratify must be 'rank' or 'global'; got {stratify!r}.")
        # A batch of the plan is that of one rank, or is divided among all ranks.
        self._n_sharing = self.world_size if stratify == "global" else 1
        planned_size = self._n_sharing * self.batch_size
        if 2 * self.min_per_class > planned_size:
            raise ValueError(
                f"batch_size must hold min_per_class rows of both classes; got batch_size "
                f"{batch_size} and min_per_class {min_per_class}. Use a batch_size of at least "
                f"{-(-2 * self.min_per_class // self._n_sharing)}."
            )
        self._pos, self._neg = _classes(labels, pairs)
        self.n_pos, self.n_neg = len(self._pos), len(self._neg)
        self._pos_bounds, self._neg_bounds = _plan(
            self.n_pos, self.n_neg, planned_size, self.min_per_class, positives,
            drop_last=self.drop_last, multiple=self.world_size // self._n_sharing,
        )  # fmt: skip
        sizes = np.diff(self._pos_bounds + self._neg_bounds)
        if sizes.size == 0:
            raise ValueError(
                f"batch_size must let at least one full batch form on each of {world_size} ranks "
                f"when drop_last is set; got {batch_size} for {self.n_pos} positives and "
                f"{self.n_neg} negatives. Use a smaller batch_size, or drop_last=False."
            )
        if sizes.min() < self._n_sharing:
            raise ValueError(
                f"labels must hold a row for each rank in every batch; got a batch of "
                f"{sizes.min()} rows for {world_size} ranks. Use fewer ranks or a larger "
                "batch_size."
            )

    def __len__(self) -> int:
        """Return the number of batches of an epoch on this rank."""
        return (len(self._pos_bounds) - 1) * self._n_sharing // self.world_size

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng((self.seed, self.epoch))
        self.epoch += 1
        pos, neg = self._pos, self._neg
        if self.shuffle:
            pos, neg = generator.permutation(pos), generator.permutation(neg)
        number, share = divmod(self.rank, self._n_sharing)
        for i in range(number, len(self._pos_bounds) - 1, self.world_size // self._n_sharing):
            batch = self._batch(i, pos, neg)
            begin, end = (len(batch) * k // self._n_sharing for k in (share, share + 1))
            yield batch[begin:end]

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass epoch `epoch`."""
        self.epoch = check_integer("epoch", epoch, at_least=0)

    def _batch(self, i: int, pos: Rows, neg: Rows) -> list[int]:
        # Rows are repeated in the same order, so that a batch has a row twice only if it needs more
        # rows than there are.
        pos = pos[np.arange(*self._pos_bounds[i : i + 2]) % len(pos)]
        neg = neg[np.arange(*self._neg_bounds[i : i + 2]) % len(neg)]
        # Spread the positives evenly, for models that split the batch further.
        batch = np.empty(len(pos) + len(neg), dtype=np.int64)
        is_pos = np.zeros(len(batch), dtype=bool)
        is_pos[(2 * np.arange(len(pos)) + 1) * len(batch) // (2 * len(pos))] = True
        batch[is_pos], batch[~is_pos] = pos, neg
        rows: list[int] = batch.tolist()
        return rows


def _classes(labels: Any, pairs: str) -> tuple[Rows, Rows]:
    """Check the labels; return the rows of positives and of negatives.

    Ordered targets are cut between two of their values, as near to the middle of the rows as
    possible; the upper part is positive. Survival times are positive if they are events; if all of
    them are, the early half of the times is.

    Examples
    --------
    >>> [rows.tolist() for rows in _classes([0, 0, 3, 0, 1, 0, 0], "ordered")]
    [[2, 4], [0, 1, 3, 5, 6]]
    """
    pair_options.check_pairs(pairs, "harrell")
    labels = tuple(map(_on_cpu, labels)) if isinstance(labels, tuple) else _on_cpu(labels)
    if pairs == "binary":
        positive = binary.positive_rows(binary.labels_from(labels))
        n_pos = int(positive.sum())
        rule = f"both classes; got {n_pos} positives and {len(positive) - n_pos} negatives"
    elif pairs == "ordered":
        positive = _upper_part(ranked.target_from(labels))
        rule = f"at least two different targets; got none in {len(positive)} rows"
    else:
        times = survival.survival_from(labels)
        positive = _upper_part(-times.times) if times.events.all() else times.events
        rule = f"at least one event; got none in {len(positive)} rows"
    if positive.any() and not positive.all():
        return np.flatnonzero(positive), np.flatnonzero(~positive)
    raise ValueError(f"labels must hold {rule}. A batch of one class has no pair to train on.")


def _on_cpu(labels: Any) -> Any:
    return labels.cpu() if isinstance(labels, torch.Tensor) else labels


def _upper_part(target: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows are above the cut that is nearest to the middle."""
    values, counts = np.unique(target, return_counts=True)
    if len(values) < 2:
        return np.zeros(len(target), bool)
    n_below = np.cumsum(counts)[:-1]
    above: NDArray[np.bool_] = target >= values[1:][np.argmin(np.abs(2 * n_below - len(target)))]
    return above


def _plan(
    n_pos: int, n_neg: int, size: int, min_per_class: int, positives: float | None = None,
    *, drop_last: bool = False, multiple: int = 1,
) -> tuple[Rows, Rows]:  # fmt: skip
    """Divide the rows of both classes among the batches of an epoch.

    Each class has places. With more places than rows, rows are repeated; with fewer, some are left
    out. Batch i takes the places from ``bounds[i]`` to ``bounds[i + 1]`` of its class. The number
    of batches is a `multiple`; there are none if there are too few rows for a full one.

    >>> pos, neg = _plan(3, 97, 10, 1)
    >>> pos.tolist()  # eleven batches, in which the three rare rows are used eleven times
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    >>> int(neg[-1])
    97
    """
    quota = _quota(n_pos, n_neg, size, min_per_class, positives)
    # The class that needs more batches is used once.
    least = max(n_pos / quota, n_neg / (size - quota))
    n_batches = multiple * (math.floor if drop_last else math.ceil)(least / multiple)
    fewest = min_per_class * n_batches
    if not drop_last:
        n_pos, n_neg = (max(math.ceil(least * n), fewest) for n in (quota, size - quota))
    elif positives is not None:
        n_pos, n_neg = (int(n_batches * n) for n in (quota, size - quota))
    else:  # rows of the larger class are left out
        n_small = min(max(n_pos, fewest), max(n_neg, fewest), n_batches * size // 2)
        n_large = n_batches * size - n_small
        n_pos, n_neg = (n_small, n_large) if n_pos <= n_neg else (n_large, n_small)
    pos, neg = _bounds(n_pos, n_batches), _bounds(n_neg, n_batches)
    # Without a fixed share, a batch with a place more in one class has one less in the other.
    return pos, neg if positives is not None else n_neg - neg[::-1]


def _quota(
    n_pos: int, n_neg: int, size: int, min_per_class: int, positives: float | None
) -> Fraction:
    """Return the mean number of positives in a full batch of `size` rows."""
    quota, largest = Fraction(size * n_pos, n_pos + n_neg), size - min_per_class
    if isinstance(positives, float | np.floating) and 0.0 < positives < 1.0:
        quota = Fraction(round(float(positives) * size))
    elif positives is not None:
        is_integer = isinstance(positives, int | np.integer) and not isinstance(positives, bool)
        if not (is_integer and min_per_class <= positives <= largest):
            raise ValueError(
                f"positives must be a share between 0 and 1, or a whole number from "
                f"{min_per_class} to {largest} (batches of {size}, min_per_class "
                f"{min_per_class}); got {positives!r}."
            )
        quota = Fraction(int(positives))
    return min(max(quota, Fraction(min_per_class)), Fraction(largest))


def _bounds(n_places: int, n_batches: int) -> Rows:
    """Divide places among batches as evenly as possible, the first batches having one more."""
    i = np.arange(n_batches + 1)
    quotient, remainder = divmod(n_places, max(n_batches, 1))
    return i * quotient + np.minimum(i, remainder)
