"""Gather rows whose number differs between ranks, in one exchange for all columns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from everypair.torch.collectives.ranks import Ranks

_ALIGNMENT = 8  # bytes; that of the widest type


def gather_rows(
    ranks: Ranks, columns: Sequence[Tensor], counts: Sequence[int]
) -> list[list[Tensor]]:
    """Return each column as a list with the rows of each rank.

    Parameters
    ----------
    ranks : Ranks
    columns : tensors (n, ...)
        The rows of this rank, of any types; types and trailing dimensions are the same on all
        ranks.
    counts : list of int
        The number of rows of each rank. The rows of a rank are padded to the largest one, so that
        each rank sends ``max(counts)`` rows to every other.
    """
    widths = [column.element_size() * column.shape[1:].numel() for column in columns]
    # Bytes of all columns in one message, the widest types first, so that each column is aligned.
    order = sorted(range(len(columns)), key=lambda i: -columns[i].element_size())
    starts, end = {}, 0
    for i in order:
        starts[i], end = end, end + max(counts) * widths[i]
    length = -(-end // _ALIGNMENT) * _ALIGNMENT
    message = torch.zeros(length, dtype=torch.uint8, device=columns[0].device)
    for i, column in enumerate(columns):
        own = column.contiguous().reshape(-1).view(torch.uint8)
        message[starts[i] : starts[i] + len(own)] = own
    received = ranks.gather(message)
    return [
        [
            given[starts[i] : starts[i] + count * widths[i]]
            .view(column.dtype)
            .reshape(-1, *column.shape[1:])
            for given, count in zip(received, counts, strict=True)
        ]
        for i, column in enumerate(columns)
    ]
