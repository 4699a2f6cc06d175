"""The laws for whoever brings a backend of their own, and how hard they are tried there."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from hypothesis import settings

from . import test_laws

LAWS = {
    name: law
    for name, law in vars(test_laws).items()
    if name.startswith("test_") and "auc" not in name and "generators" not in name
}


@contextmanager
def examples_over(divisor):
    """Try a share of the examples inside the block, for backends slow with small batches."""
    with pytest.MonkeyPatch.context() as patch:
        for law in LAWS.values():
            usual = law._hypothesis_internal_use_settings
            fewer = settings(usual, max_examples=max(1, usual.max_examples // divisor))
            patch.setattr(law, "_hypothesis_internal_use_settings", fewer)
        yield
