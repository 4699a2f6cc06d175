"""Every law of the core holds for tensors: the same test functions, another backend."""

from __future__ import annotations

import pytest

from ..laws import LAWS
from .backends import BACKENDS

globals().update(LAWS)


@pytest.fixture(scope="module", params=BACKENDS, ids=lambda backend: backend.name)
def backend(request):
    return request.param


def test_no_law_was_lost():
    assert len(LAWS) >= 15
