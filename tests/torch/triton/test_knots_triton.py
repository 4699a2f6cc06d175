"""Whether a pair counts is decided exactly, by the plans for small and for large batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings

from ...extreme_cases import SMALL, assert_exact
from ...test_extremes import test_the_pairs_beyond_the_knot_are_exact
from ..backends import TorchBackend
from .device import DEVICE
from .sizes import pairs_up_to, small_blocks


@pytest.fixture(scope="module", params=[10**9, 0], ids=["pairs", "sort"])
def backend(request):
    """Return the Triton backend with few examples, because the interpreter is slow."""
    law = test_the_pairs_beyond_the_knot_are_exact
    usual = law._hypothesis_internal_use_settings
    with pytest.MonkeyPatch.context() as patch, small_blocks(), pairs_up_to(request.param):
        patch.setattr(law, "_hypothesis_internal_use_settings", settings(usual, max_examples=8))
        yield TorchBackend("torch triton", DEVICE)


@pytest.mark.parametrize("name", [name for name in SMALL if name.startswith("on the knot")])
def test_results_are_exact(backend, name):
    assert_exact(backend, name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_that_rounds_to_the_knot(backend, dtype):
    # 1e-17 + 1 > 1, but the rounded difference 1e-17 - 1 is -1.
    check = test_the_pairs_beyond_the_knot_are_exact.hypothesis.inner_test
    check(backend, [(1.0, True), (1e-17, False), (-1e-17, False), (3.0, True)], 1.0, dtype, False)
