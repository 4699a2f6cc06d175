"""Run the Triton kernels on a GPU, or in the Triton interpreter.

Triton decides when it is imported whether it interprets, so a run of its own does it::

    TRITON_INTERPRET=1 python -m pytest tests/torch/triton

Without the variable and without a GPU, this folder is skipped.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch


def reason_to_skip():
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if os.environ.get("TRITON_INTERPRET") != "1" and not torch.cuda.is_available():
        return "Triton kernels need a GPU, or TRITON_INTERPRET=1 in a run of their own"
    return None


class SkippedModule(pytest.Module):
    """A test module that is reported as skipped and never imported."""

    def collect(self):
        pytest.skip(reason_to_skip())


def pytest_pycollect_makemodule(module_path, parent):
    if reason_to_skip() is not None:
        return SkippedModule.from_parent(parent, path=module_path)
    return None
