"""All laws, for every plan of the Triton kernels.

Batches with groups are computed by torch operations, which have to obey the same laws. In the
interpreter, so are smooth surrogates, whose kernels take seconds for a batch there: see
`test_smooth_triton`.
"""

from __future__ import annotations

import numpy as np
import pytest

from everypair.torch import _arrays
from everypair.torch.triton import plans
from everypair.torch.triton.common.launch import INTERPRETED

from ...laws import LAWS, examples_over
from ..backends import TorchBackend
from .device import DEVICE
from .sizes import pairs_up_to, small_blocks

globals().update(LAWS)

# Up to how many rows `by_pairs` is used, so that all batches of a law take the same plan; and the
# divisor of the number of examples, because both the interpreter and compiling are slow.
PLANS = {"pairs": (10**9, 10), "buckets, moments and sort": (0, 20 if INTERPRETED else 10)}


@pytest.fixture(scope="module", params=PLANS)
def backend(request):
    bound, divisor = PLANS[request.param]
    sizes = {"CHUNKS": 8, "ROWS": 64, "DD_ROWS": 64, "BLOCK": 32}
    patch = pytest.MonkeyPatch.context()
    with patch as only, small_blocks(**sizes), examples_over(divisor), pairs_up_to(bound):
        if INTERPRETED:
            only.setattr(plans, "takes", lambda terms: False)
        yield TorchBackend("torch triton", DEVICE)


def test_a_plan_computes_everything_without_groups(backend, monkeypatch):
    monkeypatch.setattr(_arrays, "evaluate", None)
    scores, labels = np.linspace(-1.0, 1.0, 40), np.arange(40) % 3 == 0
    for knobs in ({}, {"surrogate": "huber_hinge", "weights": np.ones(40)}):
        for array in backend.derivatives(scores, labels, **knobs):
            assert np.isfinite(array).all()
        assert np.isfinite(backend.hvp(scores, labels, scores, **knobs)).all()
