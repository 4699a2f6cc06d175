"""The batches of an epoch on the device, many of them prepared at once.

To select, convert, crop and mirror the images of one batch takes about twenty short kernels. Here
they run once for many batches, so that a step only copies its batch from one tensor. Trials of one
seed train on the same batches and share them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from everypair.experiments.data import augment
from everypair.experiments.data.splits import Part
from everypair.experiments.training.batches import Batches

PREPARED_VALUES = 2**24
"""How many input values are prepared at once: 64 MiB in float32."""


class PreparedBatches:
    """Batches of inputs, labels and groups in tensors that a captured CUDA graph can read.

    Parameters
    ----------
    batches : Batches
        Chooses the rows.
    part : Part
        The rows, on the device.
    size : int
        Rows in a batch. The last batch of an epoch may have fewer.

    Attributes
    ----------
    batches : Batches
    n_at_once : int
        How many batches `prepare` prepares.
    """

    def __init__(self, batches: Batches, part: Part, size: int) -> None:
        self.batches, self.size, self._part = batches, size, part
        n, device, shape = len(batches), part.labels.device, part.inputs.shape[1:]
        self.n_at_once = max(1, min(n, PREPARED_VALUES // (size * shape.numel())))
        self._rows = torch.zeros(n, size, dtype=torch.long, device=device)
        self._numbers: Tensor | None = None
        if batches.augmented:
            self._numbers = torch.zeros(n, 3, size, device=device)
        # Images are stored with the channels last, as the convolutions need them.
        self._is_image = len(shape) == 3
        stored = (*shape[1:], shape[0]) if self._is_image else shape
        dtype = torch.float32 if part.inputs.dtype == torch.uint8 else part.inputs.dtype
        self._inputs = torch.zeros(self.n_at_once, size, *stored, dtype=dtype, device=device)
        self._labels = torch.zeros(self.n_at_once, size, dtype=part.labels.dtype, device=device)
        self._groups: Tensor | None = None
        if part.groups is not None:
            self._groups = part.groups.new_zeros(self.n_at_once, size)

    def load(self, epoch: int) -> list[int]:
        """Copy the rows and random numbers of an epoch to the device; return the batches' sizes."""
        plan = self.batches.plan(epoch)
        rows, numbers = plan.stacked(self.size)
        send(torch.from_numpy(rows), self._rows)
        if self._numbers is not None and numbers is not None:
            send(numbers, self._numbers)
        sizes: list[int] = plan.sizes[plan.visits].tolist()
        return sizes

    def prepare(self, begin: int) -> None:
        """Prepare the `n_at_once` batches of the epoch from number `begin` on."""
        at = slice(begin, begin + self.n_at_once)
        rows, numbers, part = self._rows[at].flatten(), None, self._part
        if self._numbers is not None:
            numbers = self._numbers[at].transpose(0, 1).flatten(1)
        inputs = augment.prepare(part.inputs.index_select(0, rows), numbers)
        if self._is_image:
            inputs = inputs.permute(0, 2, 3, 1)
        _fill(self._inputs, inputs)
        _fill(self._labels, part.labels.index_select(0, rows))
        if self._groups is not None and part.groups is not None:
            _fill(self._groups, part.groups.index_select(0, rows))

    def batch(self, cursor: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return inputs, labels and groups of a prepared batch, without its rows after `size`.

        `cursor` has the number of the batch among the prepared ones, shape (1,), on the device.
        """

        def of(stored: Tensor) -> Tensor:
            return stored.index_select(0, cursor).squeeze(0)[:size]

        inputs, labels = of(self._inputs), of(self._labels)
        groups = None if self._groups is None else of(self._groups)
        return inputs.permute(0, 3, 1, 2) if self._is_image else inputs, labels, groups


def _fill(stored: Tensor, values: Tensor) -> None:
    """Copy (batches * size, ...) to the first entries of (n_at_once, size, ...)."""
    stored.flatten(0, 1)[: len(values)].copy_(values)


def send(source: Tensor, target: Tensor) -> None:
    """Copy a tensor of the CPU to the first entries of another, on any device, without waiting."""
    if target.is_cuda:
        source = source.pin_memory()
    target[: len(source)].copy_(source, non_blocking=True)
