"""Random numbers that follow from a trial's seed and leave global generators unchanged.

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


def derived(seed: int, purpose: str, *path: int) -> int:
    """Derive a seed for one purpose, and for further numbers such as the epoch."""
    words = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *path]).generate_state(2)
    return int(words[0]) << 31 | int(words[1]) >> 1


@contextmanager
def isolated(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators inside the block and restore them afterwards.

    For code that takes no generator: the initialisation of layers, and dropout.
    """
    on_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_cuda else []):
        # torch.manual_seed would seed every device, but only this one is restored.
        torch.default_generator.manual_seed(seed)
        if on_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
