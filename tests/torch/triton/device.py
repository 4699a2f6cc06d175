"""Where the kernels run: on a GPU, or on the CPU in the interpreter."""

from __future__ import annotations

import torch

from everypair.torch.triton.common.launch import INTERPRETED

DEVICE = "cpu" if INTERPRETED else "cuda"


def tensor(array):
    return None if array is None else torch.tensor(array, device=DEVICE)
