"""Random numbers that follow from a trial's seed and touch nobody else's.

>>> derived(0, "order", 1) == derived(0, "order", 1)
True
>>> derived(0, "order", 1) == derived(0, "order", 2)
False
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["derived", "isolated"]


def derived(seed: int, purpose: str, *path: int) -> int:
    """Return a seed of its own for one purpose, and one epoch if `path` says so."""
    words = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *path]).generate_state(2)
    return int(words[0]) << 31 | int(words[1]) >> 1


@contextmanager
def isolated(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's own generators inside the block and put them back afterwards.

    For code that knows no others: the initialisation of layers, and dropout.
    """
    on_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_cuda else []):
        # Not torch.manual_seed: that seeds every device, of which only one is put back.
        torch.default_generator.manual_seed(seed)
        if on_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
