"""Kinks of a surrogate are smoothed; surrogates with jumps raise."""

from __future__ import annotations

import numpy as np
import pytest

import everypair as ep
from everypair.sklearn import PairLinearClassifier
from everypair.sklearn._smoothing import smoothed, stages
from everypair.surrogates import Surrogate, Term

TERMS = [Term(0, 1, 0.5), Term(-1, -1, 2, knot=1), Term(0, 0, 0.5, knot=0), Term(0, 0, 0.5, knot=0)]
MIXED = Surrogate("mixed", TERMS)


@pytest.mark.parametrize("surrogate", [ep.surrogates.LINEAR_HINGE, MIXED], ids=lambda s: s.name)
@pytest.mark.parametrize("width", [1.0, 1e-3])
def test_smoothing_changes_values_near_the_kink_only(surrogate, width):
    assert len(stages(surrogate, width)) > 1
    rounded = smoothed(surrogate, width)
    assert stages(rounded, width) == [rounded]
    t = np.linspace(-3, 5, 2001)
    gap = rounded.value(t) - surrogate.value(t)
    knots = [term.knot for term in surrogate.terms if term.knot is not None]
    near = np.min([np.abs(t - k) for k in knots], axis=0) <= width / 2
    jump = 3.0 if surrogate is MIXED else 1.0
    assert np.abs(gap[~near]).max() < 1e-8
    assert np.abs(gap).max() <= jump * width / 8 + 1e-8


def test_smooth_surrogates_are_not_changed():
    huber = ep.surrogates.HUBER_HINGE
    assert stages(huber, 0.1) == [huber]
    assert smoothed(huber, 0.1).terms == huber.terms


def test_a_surrogate_with_a_jump_raises():
    step = Surrogate("step", [Term(1, 0, 0, knot=0)])
    with pytest.raises(ValueError, match=r"surrogate must be continuous.*'step' jumps"):
        PairLinearClassifier(surrogate=step).fit([[0.0], [1.0]], [0, 1])
