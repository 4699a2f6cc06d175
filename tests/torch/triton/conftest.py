"""Run the Triton kernels on a GPU, or in the Triton interpreter.

Triton decides when it is imported whether it interprets, so a run of its own does it::

    TRITON_INTERPRET=1 python -m pytest tests/torch/triton

Without the variable and without a GPU, this folder is skipped.
"""

from __future__ import annotations

import importlib.util
import os
from importlib import metadata

import pytest
import torch


def reason_to_skip():
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if os.environ.get("TRITON_INTERPRET") != "1":
        needed = "Triton kernels need a GPU, or TRITON_INTERPRET=1 in a run of their own"
        return None if torch.cuda.is_available() else needed
    triton, numpy = (version_of(package) for package in ("triton", "numpy"))
    if triton < (3, 7) and numpy >= (2, 4):
        return "the interpreter of Triton before 3.7 needs NumPy before 2.4"
    if triton < (3, 2) and numpy >= (2, 0):
        return "the interpreter of Triton 3.1 needs NumPy 1"
    return None


def version_of(package):
    return tuple(map(int, metadata.version(package).split(".")[:2]))


def read_annotations_as_text(jit):
    """Let Triton 3.1 recognise annotations that are text, as they are in this package."""
    usual = jit._normalize_ty
    jit._normalize_ty = lambda ty: usual(ty).removeprefix("tl.")


def patch_language_once(interpreted):
    """Save half of the time of the interpreter: do not patch `triton.language` again and again.

    It does so at every call of a device function, though the launch that is running has done it.
    Only the first call from a module is left to it, for modules that import `triton.language.core`.
    """
    plain, seen = interpreted.__call__, set()

    def call(self, *args, **kwargs):
        if id(self.fn.__globals__) in seen:
            return self.rewrite()(*args, **kwargs)
        seen.add(id(self.fn.__globals__))
        return plain(self, *args, **kwargs)

    interpreted.__call__ = call


if reason_to_skip() is None and os.environ.get("TRITON_INTERPRET") == "1":
    from triton.runtime import jit
    from triton.runtime.interpreter import InterpretedFunction

    if hasattr(InterpretedFunction, "rewrite"):
        patch_language_once(InterpretedFunction)
    else:
        read_annotations_as_text(jit)


class SkippedModule(pytest.Module):
    """A test module that is reported as skipped and never imported."""

    def collect(self):
        pytest.skip(reason_to_skip())


def pytest_pycollect_makemodule(module_path, parent):
    if reason_to_skip() is not None:
        return SkippedModule.from_parent(parent, path=module_path)
    return None
