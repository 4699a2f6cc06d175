"""The laws for the CUDA kernels: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

LAWS = Path(__file__).with_name("triton_laws.py")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not here")
def test_the_laws_hold_for_triton():
    # A process of its own: Triton decides at its first import whether it interprets.
    interpreted = "0" if torch.cuda.is_available() else "1"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(LAWS)],
        env={**os.environ, "TRITON_INTERPRET": interpreted},
        cwd=LAWS.parents[2],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
