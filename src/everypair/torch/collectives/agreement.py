"""The first exchange of a call, after which all ranks continue or all ranks raise an error.

Every rank sends the same number of floats, whatever its input is: a status, a checksum of the
options, and numbers about its rows. So a rank with wrong input takes part as well, and the others
do not wait for it. Texts are exchanged only if there is an error to report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar
from zlib import crc32

import torch

from everypair.torch.collectives.processes import Processes

Checked = TypeVar("Checked")
_TEXT_BYTES = 2048


def agree(
    processes: Processes,
    check: Callable[[], tuple[Checked, str, Sequence[float]]],
    n_facts: int,
) -> tuple[Checked, list[list[float]]]:
    """Check the input of this rank and exchange facts about it with all ranks.

    Parameters
    ----------
    processes : Processes
    check : callable
        Returns the checked input of this rank, a text that must be the same on all ranks, and
        `n_facts` numbers; or raises an error.
    n_facts : int

    Returns
    -------
    checked
        The input that `check` returned.
    facts : list of lists
        The numbers of each rank.

    Raises
    ------
    ValueError
        On all ranks, if `check` has raised on one of them or their texts differ. A rank on which
        `check` has raised raises that error.
    """
    error: Exception | None = None
    header = [1.0, 0.0, *[0.0] * n_facts]
    try:
        checked, text, facts = check()
        header = [0.0, float(crc32(text.encode())), *facts]
    except Exception as caught:
        error, text = caught, str(caught)
    # A fixed device: this rank may have no tensor at all.
    headers = processes.gather(torch.tensor(header, dtype=torch.float64, device="cpu")).tolist()
    failed = [rank for rank, numbers in enumerate(headers) if numbers[0]]
    different = [rank for rank, numbers in enumerate(headers) if numbers[1] != headers[0][1]]
    if failed or different:
        texts = _gather_texts(processes, text)
        if error is not None:
            raise error
        if failed:
            first = failed[0]
            raise ValueError(f"rank {first} of {processes.size} has an error: {texts[first]}")
        raise ValueError(
            "all ranks must call the loss with the same options and types; got\n"
            + "\n".join(f"  rank {rank}: {texts[rank]}" for rank in (0, different[0]))
        )
    return checked, [numbers[2:] for numbers in headers]


def _gather_texts(processes: Processes, text: str) -> list[str]:
    """Return the texts of all ranks, cut to a fixed number of bytes."""
    message = torch.zeros(_TEXT_BYTES, dtype=torch.uint8, device="cpu")
    encoded = text.encode()[:_TEXT_BYTES]
    message[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8, device="cpu")
    received = processes.gather(message).tolist()
    return [bytes(part).rstrip(b"\0").decode(errors="ignore") for part in received]
