"""Backends under test, and profiles of hypothesis.

Set HYPOTHESIS_PROFILE=thorough for forty times as many examples.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

import everypair as ep
from everypair.kernel import choose

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=25, derandomize=True, **COMMON)
settings.register_profile("thorough", max_examples=1000, **COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def _method_of(function):
    def method(self, scores, labels, *vector, **knobs):
        with choose.backend(self.name):
            return function(scores, labels, *vector, **knobs)

    return method


class ArrayBackend:
    """The public functions on arrays, computed by NumPy or by the compiled kernel.

    The laws call these methods with NumPy arrays and expect NumPy arrays. A class with the same
    methods tests another ecosystem.
    """

    def __init__(self, name):
        self.name = name

    loss = _method_of(ep.pair_loss)
    loss_and_grad = _method_of(ep.pair_loss_and_grad)
    derivatives = _method_of(ep.pair_derivatives)
    hvp = _method_of(ep.pair_hvp)
    auc = _method_of(ep.auc)


@pytest.fixture(scope="session", params=["numpy", "native"])
def backend(request):
    if request.param == "native" and choose.native.kernel is None:
        pytest.skip("the compiled kernel is not built here")
    return ArrayBackend(request.param)


@pytest.fixture(scope="module")
def kernel(backend):
    """Run a test with NumPy, and again with the compiled kernel."""
    with choose.backend(backend.name):
        yield backend.name
