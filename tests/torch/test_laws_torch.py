"""All laws, and the promise of accuracy, for tensors: the CPU kernel, torch operations, a GPU."""

from __future__ import annotations

import pytest

from ..laws import LAWS
from ..test_promise import CASES, assert_promised
from .backends import BACKENDS

globals().update(LAWS)


@pytest.fixture(scope="module", params=BACKENDS, ids=lambda backend: backend.name)
def backend(request):
    return request.param


@pytest.mark.parametrize("name", CASES)
def test_every_entry_is_as_accurate_as_promised(backend, name):
    assert_promised(backend, CASES[name])
