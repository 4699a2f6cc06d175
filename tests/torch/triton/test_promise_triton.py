"""The promise of accuracy for the plans of the Triton kernels; small batches in the interpreter."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from everypair.torch.triton.common.launch import INTERPRETED

from ...test_promise import CASES, assert_promised
from ..backends import TorchBackend
from .device import DEVICE
from .sizes import pairs_up_to, small_blocks

BACKEND = TorchBackend("torch triton", DEVICE)
PLANS = {name: case for name, case in CASES.items() if not case.groups}
if INTERPRETED:  # a batch takes seconds there
    QUICK = ("squared_hinge", "linear_hinge")
    PLANS = {
        name: case._replace(n=100, share=0.3)
        for name, case in PLANS.items()
        if case.n in (700, 2_000) and case.shape == "normal" and case.surrogate in QUICK
    }
KINDS = ("grad",) if INTERPRETED else ("grad", "hess", "hvp")


@pytest.fixture(autouse=True)
def blocks():
    with small_blocks(CHUNKS=8, ROWS=64, DD_ROWS=64, BLOCK=32) if INTERPRETED else nullcontext():
        yield


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("most", [10**9, 0], ids=["pairs", "no pairs"])
def test_every_entry_is_as_accurate_as_promised(name, most):
    with pairs_up_to(most):
        assert_promised(BACKEND, PLANS[name], KINDS)
