"""Batches that always hold both classes.

An epoch is a plan (how many rows of each class every batch takes) and an order of the rows of each
class. Both depend on the seed and the number of the epoch only, so that ranks agree without
communication and a run can resume from two integers.

>>> sampler = StratifiedBatchSampler([1, 0, 0, 0, 0, 0, 0], batch_size=3, shuffle=False)
>>> list(sampler)
[[1, 0, 2], [3, 0, 4], [5, 0, 6]]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Sampler

from everypair.torch._inputs import check_integer
from everypair.torch.training.sampler_classes import rows_of_both_classes
from everypair.torch.training.sampler_plan import plan_epoch


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
        self.shuffle = bool(shuffle)
        self.drop_last = bool(drop_last)
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
        self._planned_size = n_sharing * self.batch_size
        if 2 * self.min_per_class > self._planned_size:
            raise ValueError(
                f"batch_size must hold min_per_class rows of both classes; got batch_size "
                f"{batch_size} and min_per_class {min_per_class}. Use a batch_size of at least "
                f"{-(-2 * self.min_per_class // n_sharing)}."
            )
        pos, neg = rows_of_both_classes(labels, pairs)
        self.n_pos, self.n_neg = len(pos), len(neg)
        quota = None if positives is None else self._quota(positives)
        # The larger class is the one that needs more batches in order to be used once.
        if quota is None:
            pos_is_small = len(pos) <= len(neg)
        else:
            pos_is_small = len(pos) * (self._planned_size - quota) <= len(neg) * quota
        self._small, self._large = (pos, neg) if pos_is_small else (neg, pos)
        if quota is not None and not pos_is_small:
            quota = self._planned_size - quota
        self._small_bounds, self._large_bounds = plan_epoch(
            len(self._small), len(self._large), batch_size=self._planned_size,
            min_per_class=self.min_per_class, quota=quota, drop_last=self.drop_last,
            world_size=self._n_side_by_side,
        )  # fmt: skip
        self._n_batches = len(self._small_bounds) - 1
        if self._n_batches == 0:
            raise ValueError(
                f"batch_size must let at least one full batch form on each of {world_size} ranks "
                f"when drop_last is set; got {batch_size} for {self.n_pos} positives and "
                f"{self.n_neg} negatives. Use a smaller batch_size, or drop_last=False."
            )
        smallest = (np.diff(self._small_bounds) + np.diff(self._large_bounds)).min()
        if smallest < n_sharing:
            raise ValueError(
                f"labels must hold a row for each rank in every batch; got a batch of {smallest} "
                f"rows for {world_size} ranks. Use fewer ranks or a larger batch_size."
            )
        self._epoch = 0
        self._position = 0
        self._started = False

    def __len__(self) -> int:
        """Return the number of batches of an epoch on this rank."""
        return self._n_batches // self._n_side_by_side

    def __iter__(self) -> Iterator[list[int]]:
        if self._started:
            self._epoch, self._position = self._epoch + 1, 0
        self._started = True
        epoch = self._epoch
        small, large = self._small, self._large
        if self.shuffle:
            generator = np.random.default_rng((self.seed, epoch))
            small, large = generator.permutation(small), generator.permutation(large)
        for done in range(self._position, len(self)):
            if self.stratify == "global":
                whole = self._batch(done, small, large)
                begin, end = (len(whole) * r // self.world_size for r in (self.rank, self.rank + 1))
                batch = whole[begin:end]
            else:
                batch = self._batch(done * self.world_size + self.rank, small, large)
            if self._epoch == epoch:
                self._position = done + 1
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass start at the first batch of epoch `epoch`.

        Examples
        --------
        >>> sampler = StratifiedBatchSampler([0, 1] * 8, batch_size=4)
        >>> first = list(sampler)
        >>> list(sampler) == first  # a new epoch
        False
        >>> sampler.set_epoch(0)
        >>> list(sampler) == first
        True
        """
        self._epoch = check_integer("epoch", epoch, at_least=0)
        self._position = 0
        self._started = False

    def state_dict(self, *, batches_done: int | None = None) -> dict[str, Any]:
        """Return what `load_state_dict` needs to continue, within an epoch or between epochs.

        Parameters
        ----------
        batches_done : int, optional
            The number of batches of this epoch that were used. The default is the number that the
            sampler has returned, which is the same unless a DataLoader with workers prefetches.
        """
        given = self._position if batches_done is None else batches_done
        done = check_integer("batches_done", given, at_least=0)
        if done > len(self):
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
        for name, here in self._identity().items():
            if state.get(name) != here:
                raise ValueError(
                    f"state must come from a sampler with the same {name}; it has "
                    f"{state.get(name)!r}, this one {here!r}. Build the sampler as it was built."
                )
        self._epoch, self._position = int(state["epoch"]), int(state["position"])
        self._started = False

    def _identity(self) -> dict[str, int | bool | str]:
        """Return the numbers that must be equal for a state to fit this sampler."""
        names = ("seed", "shuffle", "n_pos", "n_neg", "world_size", "stratify")
        return {name: getattr(self, name) for name in names} | {"n_batches": self._n_batches}

    def _quota(self, positives: Any) -> int:
        """Return the number of positives in a full batch."""
        most = self._planned_size - self.min_per_class
        if isinstance(positives, int | np.integer) and not isinstance(positives, bool):
            if self.min_per_class <= int(positives) <= most:
                return int(positives)
        elif isinstance(positives, float | np.floating) and 0.0 < positives < 1.0:
            full = round(float(positives) * self._planned_size)
            return min(max(full, self.min_per_class), most)
        raise ValueError(
            f"positives must be a share between 0 and 1, or a whole number from "
            f"{self.min_per_class} to {most} (batches of {self._planned_size}, min_per_class "
            f"{self.min_per_class}); got {positives!r}."
        )

    def _batch(self, i: int, small: NDArray[np.int64], large: NDArray[np.int64]) -> list[int]:
        # Rows are repeated in the same order, so that a batch has a row twice only if it needs more
        # rows than there are.
        rows_small = small[np.arange(*self._small_bounds[i : i + 2]) % len(small)]
        rows_large = large[np.arange(*self._large_bounds[i : i + 2]) % len(large)]
        # Spread the smaller class evenly, for models that split the batch further.
        batch = np.empty(len(rows_small) + len(rows_large), dtype=np.int64)
        is_small = np.zeros(len(batch), dtype=bool)
        is_small[(2 * np.arange(len(rows_small)) + 1) * len(batch) // (2 * len(rows_small))] = True
        batch[is_small], batch[~is_small] = rows_small, rows_large
        rows: list[int] = batch.tolist()
        return rows
