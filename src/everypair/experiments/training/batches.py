"""The rows of every batch of every epoch, from the seed alone.

Trials of one seed see the same rows in the same order, whatever their loss and rate. Another batch
size divides the same order into pieces of another length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from everypair.experiments.data import augment
from everypair.experiments.errors import UserError
from everypair.experiments.plan import FULL_BATCH, Settings
from everypair.experiments.seeds import derived
from everypair.torch import StratifiedBatchSampler

Integers = NDArray[np.int64]


class MiniBatch(NamedTuple):
    """The rows of one training step, with their labels and groups."""

    place: int  # of the batch in the epoch
    rows: Tensor
    labels: Tensor
    groups: Tensor | None
    numbers: Tensor | None  # (3, b) random numbers for the augmentation


class EpochPlan(NamedTuple):
    """All batches of an epoch, on the CPU; batch k is ``order[ends[k] - sizes[k] : ends[k]]``.

    Random numbers belong to places in `order`, so a row that is drawn twice gets two crops.
    """

    order: Integers
    sizes: Integers
    ends: Integers
    visits: Integers  # the batches in the order of the steps
    numbers: Tensor | None  # (3, len(order)) random numbers for the augmentation

    def stacked(self, size: int) -> tuple[Integers, Tensor | None]:
        """Return rows (steps, size) and random numbers (steps, 3, size), one entry for each step.

        A batch with fewer rows than `size` is filled up with rows of other batches.
        """
        starts = (self.ends - self.sizes)[self.visits]
        places = np.minimum(starts[:, None] + np.arange(size), len(self.order) - 1)
        numbers = self.numbers
        if numbers is not None:
            numbers = numbers[:, torch.from_numpy(places)].transpose(0, 1).contiguous()
        return self.order[places], numbers


class Batches:
    """The batches of a training.

    Parameters
    ----------
    labels : (n,) tensor
        0 or 1, on the device of the training.
    groups : (n,) tensor of whole numbers, or None
    size : int
        Rows in a batch; 0 means all rows.
    settings : Settings
        `sampler` sets how rows are drawn. Protocol "paper" skips batches without a positive.
    seed : int
    fixed : bool
        Whether every epoch has the batches of the first epoch, in another order.
    augmented : bool
        Whether each row gets random numbers for its crop, drawn anew in every epoch.

    Attributes
    ----------
    n_one_class : int
        How many batches so far held no (positive, negative) pair.
    augmented : bool

    Examples
    --------
    >>> labels = torch.tensor([1.0, 0.0, 0.0, 0.0])
    >>> batches = Batches(labels, None, size=2, settings=Settings(), seed=0)
    >>> [len(batch.rows) for batch in batches.epoch(1)], batches.n_one_class
    ([2, 2], 1)
    """

    def __init__(
        self,
        labels: Tensor,
        groups: Tensor | None,
        *,
        size: int,
        settings: Settings,
        seed: int,
        fixed: bool = False,
        augmented: bool = False,
    ) -> None:
        self._labels, self._groups = labels, groups
        # Copies on the CPU: choosing batches from them does not wait for the device.
        self._positive: NDArray[np.bool_] = labels.cpu().numpy() > 0
        # Group numbers 0, 1, 2, ... without gaps.
        self._group_of = (
            None if groups is None else np.unique(groups.cpu().numpy(), return_inverse=True)[1]
        )
        self._seed, self._fixed, self.augmented = seed, fixed, augmented
        self._skip_without_positive = settings.protocol == "paper"
        n = len(labels)
        self._size = n if size == FULL_BATCH else min(size, n)
        if settings.sampler == "stratified" and self._size < 2:
            raise UserError(
                f"batch must be at least 2 if every batch holds both classes; got {size}. "
                "Use larger batches, or --batches shuffle."
            )
        self._sampler = None
        if settings.sampler == "stratified" and self._size < n:
            own = derived(seed, "stratified")
            self._sampler = StratifiedBatchSampler(self._positive, self._size, seed=own)
        self.n_one_class = 0

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        n = len(self._positive)
        return -(-n // self._size) if self._sampler is None else len(self._sampler)

    def epoch(self, epoch: int) -> Iterator[MiniBatch]:
        """Yield the batches of an epoch; epochs count from 1."""
        plan = self.plan(epoch)
        device = self._labels.device
        rows = torch.from_numpy(plan.order).to(device)
        numbers = None if plan.numbers is None else plan.numbers.to(device)
        cut = plan.sizes.tolist()
        rows_of, labels_of = torch.split(rows, cut), torch.split(self._labels[rows], cut)
        absent = (None,) * len(cut)
        groups_of = absent if self._groups is None else torch.split(self._groups[rows], cut)
        numbers_of = absent if numbers is None else torch.split(numbers, cut, dim=1)
        for i in plan.visits.tolist():
            yield MiniBatch(i, rows_of[i], labels_of[i], groups_of[i], numbers_of[i])

    def plan(self, epoch: int) -> EpochPlan:
        """Choose the rows and the random numbers of an epoch, and count batches of one class."""
        order, sizes = self._order(1 if self._fixed else epoch)
        batch_of = np.repeat(np.arange(len(sizes)), sizes)
        n_pos = np.bincount(batch_of[self._positive[order]], minlength=len(sizes))
        with_pair = self._with_pair(order, sizes, batch_of, n_pos)
        self.n_one_class += len(sizes) - int(with_pair.sum())
        visits = np.arange(len(sizes))
        if self._fixed:
            visits = self._generator("visits", epoch).permutation(visits)
        if self._skip_without_positive:
            visits = visits[n_pos[visits] > 0]
        numbers = self._numbers(len(order), epoch) if self.augmented else None
        return EpochPlan(order, sizes, np.cumsum(sizes), visits, numbers)

    def _order(self, epoch: int) -> tuple[Integers, Integers]:
        """Return all rows in the order of the epoch, and the sizes of the batches."""
        n = len(self._positive)
        if self._sampler is None:
            order = self._generator("order", epoch).permutation(n)
            return order, np.diff(np.arange(0, n, self._size), append=n)
        self._sampler.set_epoch(epoch)
        drawn = list(self._sampler)
        return np.concatenate(drawn), np.array([len(rows) for rows in drawn])

    def _with_pair(
        self, order: Integers, sizes: Integers, batch_of: Integers, n_pos: Integers
    ) -> NDArray[np.bool_]:
        """Return which batches hold a pair; with groups, a pair inside one group."""
        if self._group_of is None:
            return (n_pos > 0) & (n_pos < sizes)
        n_groups = int(self._group_of.max()) + 1
        cell = batch_of * n_groups + self._group_of[order]
        positive = self._positive[order]
        shared = np.intersect1d(cell[positive], cell[~positive])
        return np.bincount(shared // n_groups, minlength=len(sizes)) > 0

    def _numbers(self, n: int, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(derived(self._seed, "crops", epoch))
        return augment.draw(n, generator)

    def _generator(self, purpose: str, epoch: int) -> np.random.Generator:
        return np.random.default_rng(derived(self._seed, purpose, epoch))
