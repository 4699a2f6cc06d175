"""The promise of accuracy for JAX, on as many rows as one compiled program takes."""

from __future__ import annotations

import pytest

from ..test_promise import CASES, assert_promised
from .backends import ROWS, JaxBackend, quick_compilation

PLANS = {
    name: case._replace(n=ROWS, share=0.3)
    for name, case in CASES.items()
    if case.n <= 2_000
    and case.pairs == "binary"
    and case.surrogate in ("squared_hinge", "linear_hinge", "logistic")
}


@pytest.fixture(scope="module", autouse=True)
def quick():
    with quick_compilation():
        yield


@pytest.mark.parametrize("name", PLANS)
def test_every_entry_is_as_accurate_as_promised(name):
    assert_promised(JaxBackend(), PLANS[name], kinds=("grad",))
