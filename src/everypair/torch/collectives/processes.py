"""A process group, and the collectives that everypair uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_CPU = torch.device("cpu")


class Processes(NamedTuple):
    """The processes of a group.

    Attributes
    ----------
    group : ProcessGroup or None
        None is the default group.
    rank, size : int
        The number of this process in the group, and the number of processes.
    backends : dict
        The name of the backend for each type of device, such as {"cpu": "gloo", "cuda": "nccl"}.
    """

    group: ProcessGroup | None
    rank: int
    size: int
    backends: dict[str, str]

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all ranks, (size, *shape); shape and dtype are the same on all."""
        device = self._exchange_device(tensor.device)
        sent = tensor.to(device).contiguous()
        received = sent.new_empty((self.size, *sent.shape))
        dist.all_gather(list(received.unbind()), sent, group=self.group)
        return received.to(tensor.device)

    def gather_rows(
        self, columns: Sequence[Tensor | None], counts: Sequence[int]
    ) -> list[list[Tensor] | None]:
        """Return each column as a list with the rows of each rank, in one exchange for all columns.

        Parameters
        ----------
        columns : tensors (n, ...), or None
            The rows of this rank, of any types; types and trailing dimensions are the same on all
            ranks.
        counts : list of int
            The number of rows of each rank. The rows of a rank are padded to the largest one, so
            that each rank sends ``max(counts)`` rows to every other.
        """
        as_bytes = [_viewed(column, torch.uint8) for column in columns if column is not None]
        message = torch.cat(as_bytes, 1)
        padding = message.new_zeros(max(counts) - len(message), message.shape[1])
        received = self.gather(torch.cat((message, padding)))
        parts = iter(torch.split(received, [part.shape[1] for part in as_bytes], 2))
        rows: list[list[Tensor] | None] = []
        for column in columns:
            if column is None:
                rows.append(None)
                continue
            of_ranks = [
                _viewed(part[:count], column.dtype)
                for part, count in zip(next(parts), counts, strict=True)
            ]
            rows.append([part.reshape(-1, *column.shape[1:]) for part in of_ranks])
        return rows

    def exchange(self, tensor: Tensor, sends: list[int], receives: list[int]) -> Tensor:
        """Send each rank its part of a tensor (sum(sends),); return the received parts, joined.

        ``sends[r]`` numbers go to rank r, and ``receives[r]`` numbers come from it.
        """
        sent = tensor.to(self._exchange_device(tensor.device)).contiguous()
        received = sent.new_empty(sum(receives))
        dist.all_to_all_single(received, sent, receives, sends, group=self.group)
        return received.to(tensor.device)

    def _exchange_device(self, device: torch.device) -> torch.device:
        """Return where tensors of a device must be for an exchange.

        Gloo exchanges the memory of the host, and NCCL that of the current GPU.
        """
        backend = self.backends.get(device.type)
        if backend is not None and (device.type == "cpu" or backend != "gloo"):
            return device
        return _CPU if "cpu" in self.backends else torch.device(next(iter(self.backends)))


def processes_of(process_group: ProcessGroup | None) -> Processes:
    """Return the processes of a group, or of the default group for None."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "a loss over the pairs of all ranks needs an initialised process group; there is none. "
            "Start the script with torchrun and call torch.distributed.init_process_group() first, "
            "or use pair_loss in a single process."
        )
    rank = dist.get_rank(process_group)
    if rank < 0:
        raise RuntimeError(
            f"process_group must contain this process; got a group without rank {dist.get_rank()}. "
            "Call the loss only on the ranks of the group."
        )
    config = str(dist.get_backend_config(process_group))  # such as "cpu:gloo,cuda:nccl"
    backends = dict(pair.split(":") for pair in config.split(","))
    return Processes(process_group, rank, dist.get_world_size(process_group), backends)


def _viewed(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bytes of rows (n, ...) as numbers of another type, (n, m)."""
    copy = rows.clone(memory_format=torch.contiguous_format)
    return copy.reshape(len(rows), rows.shape[1:].numel()).view(dtype)
