"""The table of data sets."""

from __future__ import annotations

import numpy as np
import pytest

from everypair.experiments.data import sources
from everypair.experiments.errors import UserError


def test_digits_are_images_of_two_classes():
    digits = sources.load("digits")
    assert digits.inputs.dtype == np.uint8
    assert digits.inputs.shape == (1797, 1, 8, 8)
    assert digits.inputs.max() == 255
    assert 0.49 < digits.positive.mean() < 0.51
    assert digits.test_inputs is None
    assert not digits.photographs
    assert digits.fingerprint == sources.load("digits").fingerprint


def test_an_unknown_name_suggests_a_similar_one():
    with pytest.raises(UserError, match=r"'cifar'\. Did you mean cifar10"):
        sources.load("cifar")


def test_a_user_can_add_a_data_set_but_not_replace_one(monkeypatch):
    monkeypatch.setattr(sources, "SOURCES", type(sources.SOURCES)("data", sources.SOURCES))
    mine = sources.Dataset("mine", np.zeros((2, 1), np.float32), np.array([True, False]))
    sources.register("mine", lambda table: mine)
    assert sources.load("mine") is mine
    assert "mine" in sources.SOURCES
    with pytest.raises(UserError, match="exists already"):
        sources.register("digits", lambda table: mine)
