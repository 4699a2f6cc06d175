"""Every law of the core holds for JAX: the same test functions, another backend."""

from __future__ import annotations

import pytest

from ..laws import LAWS
from .backends import JaxBackend, quick_laws

globals().update(LAWS)


@pytest.fixture(scope="module")
def backend():
    return JaxBackend(fewer_programs=True)


@pytest.fixture(scope="module", autouse=True)
def fewer_examples():
    with quick_laws(8):
        yield
