"""The kernels for CUDA: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not here")
@pytest.mark.parametrize("name", ["triton_kernels.py", "triton_sorted.py", "triton_laws.py"])
def test_triton_kernels(name):
    # A process of its own: Triton decides at its first import whether it interprets.
    interpreted = "0" if torch.cuda.is_available() else "1"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / name)],
        env={**os.environ, "TRITON_INTERPRET": interpreted},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
