"""Run the Triton kernels on a GPU, or in the Triton interpreter.

Triton decides when it is imported whether it interprets, so a run of its own does it::

    TRITON_INTERPRET=1 python -m pytest tests/torch/triton

Without the variable and without a GPU, this folder is skipped.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
from importlib import metadata

import pytest
import torch


def reason_to_skip():
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    triton = version_of("triton")
    if triton < (3, 4):
        return "everypair uses Triton 3.4 or newer"
    if os.environ.get("TRITON_INTERPRET") != "1":
        needed = "Triton kernels need a GPU, or TRITON_INTERPRET=1 in a run of their own"
        return None if torch.cuda.is_available() else needed
    if triton < (3, 7) and version_of("numpy") >= (2, 4):
        return "the interpreter of Triton before 3.7 needs NumPy before 2.4"
    return None


def version_of(package):
    return tuple(map(int, metadata.version(package).split(".")[:2]))


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
    from triton.runtime.interpreter import InterpretedFunction

    patch_language_once(InterpretedFunction)


class SkippedModule(pytest.Module):
    """A test module that is reported as skipped and never imported."""

    def collect(self):
        pytest.skip(reason_to_skip())


def pytest_pycollect_makemodule(module_path, parent):
    if reason_to_skip() is not None:
        return SkippedModule.from_parent(parent, path=module_path)
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path, parent):
    """Leave out the doctests of skipped modules, which would import them."""
    collected = yield
    if reason_to_skip() is None:
        return collected
    return [node for node in collected if isinstance(node, SkippedModule)]


def pytest_collection_modifyitems(items):
    """Ignore warnings of NumPy, with which the interpreter computes; a GPU does not warn."""
    ignored = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
    for item in items:
        if item.path.parent == pathlib.Path(__file__).parent:
            item.add_marker(ignored)
