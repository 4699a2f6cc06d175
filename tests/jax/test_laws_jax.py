"""Every law of the core holds for JAX: the same test functions, another backend."""

from __future__ import annotations

import pytest
from hypothesis import settings

from .. import test_laws
from .backends import JaxBackend

LAWS = {
    name: law
    for name, law in vars(test_laws).items()
    if name.startswith("test_") and "auc" not in name and "generators" not in name
}
globals().update(LAWS)


@pytest.fixture(scope="module")
def backend():
    return JaxBackend()


@pytest.fixture(scope="module", autouse=True)
def fewer_examples():
    """Try a fifth of the examples: JAX takes milliseconds to say anything about a small batch."""
    with pytest.MonkeyPatch.context() as patch:
        for law in LAWS.values():
            usual = law._hypothesis_internal_use_settings
            fewer = settings(usual, max_examples=usual.max_examples // 5)
            patch.setattr(law, "_hypothesis_internal_use_settings", fewer)
        yield


def test_no_law_was_lost():
    assert len(LAWS) >= 15
