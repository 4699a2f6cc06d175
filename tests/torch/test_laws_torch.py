"""All laws of `test_laws`, for tensors on the CPU kernel and by torch operations."""

from __future__ import annotations

import pytest

from ..laws import LAWS
from .backends import BACKENDS

globals().update(LAWS)


@pytest.fixture(scope="module", params=BACKENDS, ids=lambda backend: backend.name)
def backend(request):
    return request.param
