"""Every law of the core holds for every plan on CUDA; `test_triton` runs this file.

Batches with groups are left to torch operations, which have the same laws to obey.
"""

from __future__ import annotations

import numpy as np
import pytest

from everypair.torch import _arrays
from everypair.torch.triton.launch import INTERPRETED

from ..laws import LAWS, examples_over
from .backends import TorchBackend
from .triton_sizes import pairs_up_to, small_blocks

# The interpreter computes with NumPy, which tells of what a GPU does silently.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
globals().update(LAWS)

# Up to how many rows batches meet pair by pair, so that all of a law go the same way; and which
# share of the examples is tried: the interpreter is slow, and so is compiling every variant.
PLANS = {
    "pairs": (10**9, 10),
    "buckets, moments and sort": (0, 100 if INTERPRETED else 10),
}


@pytest.fixture(scope="module", params=PLANS)
def backend(request):
    bound, divisor = PLANS[request.param]
    sizes = {"CHUNKS": 8, "ROWS": 64, "PAIRED_ROWS": 64, "BLOCK": 32}
    with small_blocks(**sizes), examples_over(divisor), pairs_up_to(bound):
        yield TorchBackend("torch triton", "cpu" if INTERPRETED else "cuda")


@pytest.fixture(autouse=True)
def what_the_interpreter_has_time_for(request):
    """Skip most surrogates where a plan takes seconds a batch; `triton_sorted` has them all."""
    named = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if INTERPRETED and named.get("backend") == "buckets, moments and sort":
        surrogate = getattr(named.get("surrogate"), "name", "square")
        if surrogate not in ("square", "squared_hinge", "jump"):
            pytest.skip("the interpreter is slow")


def test_no_question_without_groups_is_left_to_operations(backend, monkeypatch):
    monkeypatch.setattr(_arrays, "evaluate", None)
    scores, labels = np.linspace(-1.0, 1.0, 40), np.arange(40) % 3 == 0
    for knobs in ({}, {"surrogate": "huber_hinge", "weights": np.ones(40)}):
        for array in backend.derivatives(scores, labels, **knobs):
            assert np.isfinite(array).all()
        assert np.isfinite(backend.hvp(scores, labels, scores, **knobs)).all()


def test_no_law_was_lost():
    assert len(LAWS) >= 15
