"""Blocks so small that a few rows make several of them, as a large batch does."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from everypair.torch.triton import moments, plans, sorted_rows

FULL_SIZES = {
    module: {name: getattr(module, name) for name in names}
    for module, names in (
        (sorted_rows, ("CHUNK", "CHUNKS", "STEP", "PROGRAMS", "ROWS", "PAIRED_ROWS")),
        (moments, ("BLOCK", "STEP")),
    )
}
SMALL_SIZES = {
    "CHUNK": 4, "CHUNKS": 4, "STEP": 2, "PROGRAMS": 2, "ROWS": 16, "PAIRED_ROWS": 16, "BLOCK": 16
}  # fmt: skip


@contextmanager
def small_blocks(**sizes):
    """Let the plans that sort, or need not, use small blocks inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        for module, names in FULL_SIZES.items():
            for name in names:
                patch.setattr(module, name, {**SMALL_SIZES, **sizes}[name])
        yield


@contextmanager
def pairs_up_to(n):
    """Let batches of at most so many rows meet pair by pair inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        for plan in plans.PAIRS_UP_TO:
            patch.setitem(plans.PAIRS_UP_TO, plan, n)
        yield
