"""Small blocks, so that a few rows make several of them, as in a large batch."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from everypair.torch.triton import moments, ordered, plans, sorted_rows
from everypair.torch.triton.smooth import plan as smooth_plan

FULL_SIZES = {
    module: {name: getattr(module, name) for name in names}
    for module, names in (
        (sorted_rows, ("CHUNK", "CHUNKS", "STEP", "PROGRAMS", "ROWS", "DD_ROWS")),
        (moments, ("BLOCK", "STEP")),
        (smooth_plan, ("CHUNK", "CHUNKS", "STEP", "TILE")),
        (ordered, ("BLOCK", "STEP", "ROWS")),
    )
}
SMALL_SIZES = {
    "CHUNK": 4, "CHUNKS": 2, "STEP": 2, "PROGRAMS": 2, "ROWS": 16, "DD_ROWS": 16, "BLOCK": 8,
    "TILE": 8,
}  # fmt: skip


@contextmanager
def small_blocks(**sizes):
    """Use small blocks in all plans that have blocks, inside the with statement."""
    with pytest.MonkeyPatch.context() as patch:
        for module, names in FULL_SIZES.items():
            for name in names:
                patch.setattr(module, name, {**SMALL_SIZES, **sizes}[name])
        yield


@contextmanager
def pairs_up_to(n):
    """Use `by_pairs` for at most n rows inside the with statement."""
    with pytest.MonkeyPatch.context() as patch:
        for plan in plans.PAIRS_UP_TO:
            patch.setitem(plans.PAIRS_UP_TO, plan, n)
        yield
