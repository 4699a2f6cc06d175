"""Fixtures of the tests of the torch adapter."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from everypair.torch._dispatch import forced
from tests.torch.rank_pool import RankPool


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread():
    """Use one thread for torch: the tensors are small, and tests run in parallel."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["cpu", "operations"])
def torch_backend(request):
    """Run the test on the CPU with the backend that is chosen there, and with torch operations."""
    with forced("operations") if request.param == "operations" else nullcontext():
        yield request.param


@pytest.fixture(scope="session")
def pool(tmp_path_factory):
    """Four processes that form a group, for all tests."""
    modules = [f"tests.torch.test_{name}" for name in ("distributed", "metric")]
    pool = RankPool(4, tmp_path_factory.mktemp("ranks"), modules)
    yield pool
    pool.close()
