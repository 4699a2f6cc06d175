"""A short run of `python -m benchmarks.fuzz`, on every instruction set and backend of the CPU."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from benchmarks.fuzz import checks
from benchmarks.fuzz.__main__ import describe, main
from benchmarks.fuzz.batches import draw
from benchmarks.fuzz.oracle import exact
from benchmarks.instruction_sets import instruction_sets
from everypair import _dispatch

from .exact import exact_double_sum


@pytest.fixture(autouse=True)
def default_isa():
    yield
    if _dispatch.native_is_here():
        _dispatch._native.use_isa(instruction_sets()[-1])


def assert_no_failure(batch, backends):
    for backend, checked in checks.check(batch, backends):
        assert checked.error <= 1.0, f"{describe(batch)}: {backend} {checked}"


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("numbers", [range(250), range(250, 500)], ids=["first", "second"])
def test_random_batches(isa, numbers):
    for number in numbers:
        assert_no_failure(draw(2, number, large=0.0), {isa: checks.native(isa)})


# Margins next to the largest double, denormal scores, and an outlier as the least positive: the
# batches of 102,000 on which an earlier kernel was wrong.
@pytest.mark.parametrize("number", [34447, 48240, 50625, 56751, 82434])
@pytest.mark.parametrize("isa", instruction_sets())
def test_batches_that_once_failed(isa, number):
    assert_no_failure(draw(0, number, large=0.004), {isa: checks.native(isa)})


# Equal entries of the vector for heavy rows, a slope that vanishes up to rounding, and weights
# whose product with the factor of the sum underflows where the gradient does not.
@pytest.mark.parametrize("number", [7555, 8130, 76406])
@pytest.mark.parametrize("isa", instruction_sets())
def test_batches_at_the_limits_of_rounding(isa, number):
    assert_no_failure(draw(5, number, large=0.004), {isa: checks.native(isa)})


@pytest.mark.parametrize("isa", instruction_sets())
def test_an_outlier_where_terms_cancel(isa):
    """Squares of 1e18 cancel to a line: more digits than two doubles have left."""
    assert_no_failure(draw(12, 58810, large=0.004), {isa: checks.native(isa)})


@pytest.mark.parametrize("isa", instruction_sets())
def test_random_batches_next_to_the_limits_between_plans(isa):
    for number in range(6):
        batch = draw(3, number, large=1.0)
        if batch.scores.size < 40_000:
            assert_no_failure(batch, {isa: checks.native(isa)})


@pytest.mark.parametrize(
    "calls",
    [checks.on_numpy, checks.on_torch, checks.on_torch_operations],
    ids=lambda f: f.__name__,
)
def test_random_batches_on_other_backends(calls):
    if "torch" in calls.__name__:
        pytest.importorskip("torch")
    name = "operations" if calls is checks.on_torch_operations else "other"
    for number in range(80):
        assert_no_failure(draw(4, number, large=0.0), {name: calls})


def test_the_oracle_equals_the_double_sum():
    compared = 0
    for number in range(300):
        batch = draw(5, number, large=0.0)
        knots = [term.knot for term in batch.surrogate.terms if term.knot is not None]
        rounded = any(
            Fraction(batch.margin) - Fraction(knot) != Fraction(batch.margin - knot)
            for knot in knots
        )
        if batch.scores.size > 25 or rounded:
            continue
        found = exact(batch)
        try:
            expected = exact_double_sum(
                batch.scores, batch.labels, vector=batch.vector, **batch.options
            )
        except OverflowError:
            continue
        for field in ("value", "grad", "hess", "hvp"):
            assert np.array_equal(getattr(found, field), getattr(expected, field)), describe(batch)
        compared += 1
    assert compared > 50


def test_the_command_repeats_a_batch(capsys):
    assert main(["--seed", "2", "--first", "7", "--batches", "1", "--others", "0"]) == 0
    assert "1 batches from 7 of seed 2" in capsys.readouterr().out
