"""Every law of the core holds for tensors: the same test functions, another backend."""

from __future__ import annotations

import pytest

from .. import test_laws
from .backends import BACKENDS, TorchBackend

LAWS = {
    name: law
    for name, law in vars(test_laws).items()
    if name.startswith("test_") and "auc" not in name and "generators" not in name
}
globals().update(LAWS)


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    return TorchBackend(request.param)


def test_no_law_was_lost():
    assert len(LAWS) >= 15
