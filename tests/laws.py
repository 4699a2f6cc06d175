"""The laws of `test_laws`, for the backends of other ecosystems, and their number of examples.

A module that defines a fixture `backend` and calls ``globals().update(LAWS)`` runs all of them.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from hypothesis import settings

from . import test_laws, test_ordered_laws

LAWS = {
    name: law
    for name, law in vars(test_laws).items()
    if name.startswith("test_") and "auc" not in name and "generators" not in name
}
ORDERED_LAWS = {
    name: law
    for name, law in vars(test_ordered_laws).items()
    if name.startswith("test_") and "index" not in name
}


@contextmanager
def examples_over(divisor):
    """Divide the number of examples by `divisor` inside the block, for slow backends.

    Two examples are left at least: the first one is always the simplest batch there is.
    """
    with pytest.MonkeyPatch.context() as patch:
        for law in (*LAWS.values(), *ORDERED_LAWS.values()):
            usual = law._hypothesis_internal_use_settings
            fewer = settings(usual, max_examples=max(2, usual.max_examples // divisor))
            patch.setattr(law, "_hypothesis_internal_use_settings", fewer)
        yield
