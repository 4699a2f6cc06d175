"""Reset the global random states before every test and every doctest."""

from __future__ import annotations

import os
import random
import sys

import numpy as np
import pytest

# Threads of OpenMP sleep while they wait for each other. By default they spin, at the expense of
# other processes that run tests: some tests of XGBoost then need ten times the processor time.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Some virtual machines announce AMX and then refuse its instructions, which ends the process inside
# torch's bfloat16 layers. No test needs AMX, so oneDNN is told to do without it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


@pytest.fixture(autouse=True)
def _reset_random_state():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 (scikit-learn and others use the global state)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
