"""Batches that always hold both classes.

An epoch is a plan (how many rows of each class every batch takes) and an order of the rows of each
class. Both depend on the seed and the number of the epoch only, so that ranks agree without
communication and a run can resume from two integers.

>>> sampler = StratifiedBatchSampler([1, 0, 0, 0, 0, 0, 0], batch_size=3, shuffle=False)
>>> list(sampler)
[[1, 0, 2], [3, 0, 4], [5, 0, 6]]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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

    Raises
    ------
    ValueError
        If an argument is not as described, or the labels hold one class only.

    Notes
    -----
    Every pass over the sampler is a new epoch; `set_epoch` sets the next one. Preparing an epoch
    takes O(n) time, about 20 ms for a million rows.

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
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)
        if self.rank >= self.world_size:
            raise ValueError(
                f"rank must be less than world_size; got rank {rank} of {world_size}. "
                "Ranks count from 0."
            )
        if stratify not in ("rank", "global"):
            raise ValueError(f"stratify must be 'rank' or 'global'; got {stratify!r}.")
        self.stratify = stratify
        # A batch of the plan is that of one rank, or is divided among all ranks.
        n_sharing = self.world_size if stratify == "global" else 1
        self._n_side_by_side = self.world_size // n_sharing
        planned_size = n_sharing * self.batch_size
        if 2 * self.min_per_class > planned_size:
            raise ValueError(
                f"batch_size must hold min_per_class rows of both classes; got batch_size "
                f"{batch_size} and min_per_class {min_per_class}. Use a batch_size of at least "
                f"{-(-2 * self.min_per_class // n_sharing)}."
            )
        self._pos, self._neg = _classes(labels, pairs)
        self.n_pos, self.n_neg = len(self._pos), len(self._neg)
        quota = None if positives is None else _quota(positives, planned_size, self.min_per_class)
        self._pos_bounds, self._neg_bounds = _plan(
            self.n_pos, self.n_neg, planned_size, self.min_per_class, quota,
            drop_last=self.drop_last, multiple=self._n_side_by_side,
        )  # fmt: skip
        sizes = np.diff(self._pos_bounds + self._neg_bounds)
        self._n_batches = len(sizes)
        if self._n_batches == 0:
            raise ValueError(
                f"batch_size must let at least one full batch form on each of {world_size} ranks "
                f"when drop_last is set; got {batch_size} for {self.n_pos} positives and "
                f"{self.n_neg} negatives. Use a smaller batch_size, or drop_last=False."
            )
        if sizes.min() < n_sharing:
            raise ValueError(
                f"labels must hold a row for each rank in every batch; got a batch of "
                f"{sizes.min()} rows for {world_size} ranks. Use fewer ranks or a larger "
                "batch_size."
            )
        self._epoch, self._position, self._started = 0, 0, False

    def __len__(self) -> int:
        """Return the number of batches of an epoch on this rank."""
        return self._n_batches // self._n_side_by_side

    def __iter__(self) -> Iterator[list[int]]:
        if self._started:
            self._epoch, self._position = self._epoch + 1, 0
        self._started = True
        epoch, pos, neg = self._epoch, self._pos, self._neg
        if self.shuffle:
            generator = np.random.default_rng((self.seed, epoch))
            pos, neg = generator.permutation(pos), generator.permutation(neg)
        for i in range(self._position, len(self)):
            if self.stratify == "global":
                whole = self._batch(i, pos, neg)
                begin, end = (len(whole) * r // self.world_size for r in (self.rank, self.rank + 1))
                batch = whole[begin:end]
            else:
                batch = self._batch(i * self.world_size + self.rank, pos, neg)
            if self._epoch == epoch:
                self._position = i + 1
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass start at the first batch of epoch `epoch`."""
        self._epoch = check_integer("epoch", epoch, at_least=0)
        self._position, self._started = 0, False

    def state_dict(self, *, batches_done: int | None = None) -> dict[str, Any]:
        """Return what `load_state_dict` needs to continue, within an epoch or between epochs.

        Parameters
        ----------
        batches_done : int, optional
            The number of batches of this epoch that were used. The default is the number that the
            sampler has returned, which is the same unless a DataLoader with workers prefetches.
        """
        done = self._position if batches_done is None else batches_done
        if check_integer("batches_done", done, at_least=0) > len(self):
            raise ValueError(
                f"batches_done must be at most the {len(self)} batches of an epoch; got {done}. "
                "Count from the start of the epoch."
            )
        whole_epochs, position = divmod(done, len(self))
        return {"epoch": self._epoch + whole_epochs, "position": position, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called: the next pass returns the remaining batches.

        Examples
        --------
        >>> sampler = StratifiedBatchSampler([0, 1] * 8, batch_size=4)
        >>> batches = iter(sampler)
        >>> seen = [next(batches), next(batches)]
        >>> resumed = StratifiedBatchSampler([0, 1] * 8, batch_size=4)
        >>> resumed.load_state_dict(sampler.state_dict())
        >>> list(resumed) == list(batches)
        True
        """
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise ValueError(
                    f"state must come from a sampler with the same {name}; it has "
                    f"{state.get(name)!r}, this one {value!r}. Build the sampler as it was built."
                )
        self.set_epoch(int(state["epoch"]))
        self._position = int(state["position"])

    def _identity(self) -> dict[str, int | bool | str]:
        """Return the numbers that must be equal for a state to fit this sampler."""
        names = ("seed", "shuffle", "n_pos", "n_neg", "world_size", "stratify")
        return {name: getattr(self, name) for name in names} | {"n_batches": self._n_batches}

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


def _quota(positives: Any, size: int, min_per_class: int) -> int:
    """Return the number of positives in a full batch of `size` rows."""
    largest = size - min_per_class
    if isinstance(positives, int | np.integer) and not isinstance(positives, bool):
        if min_per_class <= int(positives) <= largest:
            return int(positives)
    elif isinstance(positives, float | np.floating) and 0.0 < positives < 1.0:
        return min(max(round(float(positives) * size), min_per_class), largest)
    raise ValueError(
        f"positives must be a share between 0 and 1, or a whole number from {min_per_class} to "
        f"{largest} (batches of {size}, min_per_class {min_per_class}); got {positives!r}."
    )


def _plan(
    n_pos: int, n_neg: int, size: int, min_per_class: int, quota: int | None,
    *, drop_last: bool, multiple: int,
) -> tuple[Rows, Rows]:  # fmt: skip
    """Divide the rows of both classes among the batches of an epoch.

    Each class has places. With more places than rows, rows are repeated; with fewer, some are left
    out. Batch i takes the places from ``bounds[i]`` to ``bounds[i + 1]`` of its class. `quota` is
    the fixed number of positives in a full batch of `size` rows, and the number of batches is a
    `multiple`. There are no batches if there are too few rows for a full one.

    >>> pos, neg = _plan(3, 97, 10, 1, None, drop_last=False, multiple=1)
    >>> pos.tolist()  # eleven batches, in which the three rare rows are used eleven times
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    >>> int(neg[-1])
    97
    """

    def n_batches_of(least: Fraction) -> int:
        return multiple * (math.floor if drop_last else math.ceil)(least / multiple)

    if quota is not None:
        # The class that needs more batches is used once.
        least = max(Fraction(n_pos, quota), Fraction(n_neg, size - quota))
        n_batches = n_batches_of(least)
        fewest = min_per_class * n_batches
        rate = n_batches if drop_last else least
        n_pos, n_neg = (max(math.ceil(rate * share), fewest) for share in (quota, size - quota))
        return _bounds(n_pos, n_batches), _bounds(n_neg, n_batches)
    n_batches = n_batches_of(Fraction(n_pos + n_neg, size))
    n_small, n_large = sorted((n_pos, n_neg))
    if n_small < min_per_class * n_batches:  # rows of the smaller class are repeated
        least = max(Fraction(n_large, size - min_per_class), Fraction(n_small, min_per_class))
        n_batches = n_batches_of(least)
    fewest = min_per_class * n_batches
    n_small, n_large = max(n_small, fewest), max(n_large, fewest)
    if drop_last:  # rows of the larger class are left out
        n_small = min(n_small, n_batches * size // 2)
        n_large = n_batches * size - n_small
    n_pos, n_neg = (n_small, n_large) if n_pos <= n_neg else (n_large, n_small)
    # Where one class has a place more, the other has one less: sizes are nearly equal.
    return _bounds(n_pos, n_batches), n_neg - _bounds(n_neg, n_batches)[::-1]


def _bounds(n_places: int, n_batches: int) -> Rows:
    """Divide places among batches as evenly as possible, the first batches having one more."""
    i = np.arange(n_batches + 1)
    whole, rest = divmod(n_places, max(n_batches, 1))
    return i * whole + np.minimum(i, rest)
