"""The laws of the core and its promise of accuracy for JAX: the same tests, another backend."""

from __future__ import annotations

import pytest

from ..laws import LAWS
from ..test_promise import CASES, assert_promised
from .backends import ROWS, JaxBackend, quick_laws

globals().update(LAWS)

# As many rows as one compiled program takes.
PROMISED = {
    name: case._replace(n=ROWS, share=0.3)
    for name, case in CASES.items()
    if case.n <= 2_000
    and case.pairs == "binary"
    and case.surrogate in ("squared_hinge", "linear_hinge", "logistic")
}


@pytest.fixture(scope="module")
def backend():
    return JaxBackend(fewer_programs=True)


@pytest.fixture(scope="module", autouse=True)
def fewer_examples():
    with quick_laws(8):
        yield


@pytest.mark.parametrize("name", PROMISED)
def test_every_entry_is_as_accurate_as_promised(name):
    assert_promised(JaxBackend(), PROMISED[name], kinds=("grad",))
