"""A short run of `python -m tests.fuzz`, on every instruction set and backend of the CPU."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import everypair as ep
from benchmarks.instruction_sets import instruction_sets
from everypair.kernel import choose

from .exact import exact_double_sum
from .fuzz import checks
from .fuzz.__main__ import describe, main
from .fuzz.batches import draw, polynomial
from .fuzz.oracle import exact
from .fuzz.variants import draw_varied


@pytest.fixture(autouse=True)
def default_isa():
    yield
    if choose.native.kernel is not None:
        choose.native.kernel.use_isa(instruction_sets()[-1])


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


# Squares of 1e18 that cancel to a line, and a margin that cancels scores of 1e100.
@pytest.mark.parametrize("number", [58810, 98728])
@pytest.mark.parametrize("isa", instruction_sets())
def test_large_numbers_that_cancel(isa, number):
    assert_no_failure(draw(12, number, large=0.004), {isa: checks.native(isa)})


CANCELLING = polynomial("cancelling", (0, 0, 1, 0.1), (-0.5, 3, -1, None), (0, 1, 0, 7))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("distance", [1e4, 1e8, 1e14])
@pytest.mark.parametrize("isa", instruction_sets())
def test_an_outlier_far_from_the_vertex_of_a_term_without_a_knot(isa, distance, dtype):
    rng = np.random.default_rng(0)
    batch = draw(0, 0, large=0.0)
    for outlier in (distance, -distance):
        for label in (True, False):
            labels = np.arange(300) % 3 == 0
            scores = rng.normal(size=300) + labels
            scores[np.flatnonzero(labels == label)[5]] = outlier
            changed = replace(
                batch, scores=scores.astype(dtype), labels=labels, vector=rng.normal(size=300),
                surrogate=CANCELLING, margin=0.7, weights=None, groups=None,
            )  # fmt: skip
            assert_no_failure(changed, {isa: checks.native(isa)})


# Weights of 1e-170 times exponentials, shifts next to scores of 1e38 and 1e288, and a loss of 0
# times weights of 1e600.
@pytest.mark.parametrize(("seed", "number"), [(20, 81), (21, 5), (21, 616), (21, 141), (22, 83)])
@pytest.mark.parametrize("isa", instruction_sets())
def test_varied_batches_that_once_failed(isa, seed, number):
    batch = draw_varied(seed, number, 0.0, 0.8 if seed == 22 else 1.0)
    assert_no_failure(batch, {isa: checks.native(isa)})


# A pair 5e-16 from its vertex, survival times of groups of which one is light by 300 decades, and
# terms that cancel one without a knot, at scores of 1e37 and at a margin of 1e100.
CLOSE, LIGHT_GROUP = (42, 68370), (42, 84755)
AGAINST_A_WHOLE = [(40, 64912), (40, 80390)]
# Smooth losses next to the largest float, a margin of 1e308, denormal weights of a sum, slopes that
# cancel up to rounding, and denormal scores.
AT_THE_END_OF_FLOATS = [(50, 3460), (50, 33067), (50, 34509), (50, 55872), (50, 99046), (51, 35185)]
# Light rows whose slope two terms make, next to much heavier rows beyond both knots. NumPy errs by
# 2.6e-12 there.
HEAVY_AND_FLAT = (52, 48546)
OF_LONG_RUNS = [CLOSE, LIGHT_GROUP, *AGAINST_A_WHOLE, *AT_THE_END_OF_FLOATS]


@pytest.mark.parametrize(("seed", "number"), [*OF_LONG_RUNS, HEAVY_AND_FLAT])
@pytest.mark.parametrize("isa", instruction_sets())
def test_batches_of_long_runs_that_once_failed(isa, seed, number):
    batch = draw_varied(seed, number, 0.004, 0.02)
    assert_no_failure(batch, {isa: checks.native(isa)})


# Exponential factors of 438 rows that are nearly 1, whose rounding errors added up in products of
# the Hessian and a vector; a pair that is rounded onto its knot; and a loss of 1e-311.
@pytest.mark.parametrize("number", [34169, 7654, 10836])
@pytest.mark.parametrize("isa", instruction_sets())
def test_batches_of_seed_60_that_once_failed(isa, number):
    assert_no_failure(draw_varied(60, number, 0.004, 0.03), {isa: checks.native(isa)})


# Scores and weights over 500 and 300 decades in three groups, whose running sums are one in NumPy.
@pytest.mark.parametrize("isa", instruction_sets())
def test_groups_of_scores_and_weights_of_all_sizes(isa):
    assert_no_failure(draw(64, 92124, large=0.004), {isa: checks.native(isa)})


# A term without a knot next to terms with one, for outliers of 1e20 and weights over 300 decades:
# its sums from one end had no correct digit at the other.
@pytest.mark.parametrize(("seed", "number"), [(62, 17925), (63, 31310), (65, 71399)])
@pytest.mark.parametrize("isa", instruction_sets())
def test_terms_without_a_knot_next_to_outliers(isa, seed, number):
    assert_no_failure(draw(seed, number, large=0.004), {isa: checks.native(isa)})


@pytest.mark.parametrize(("seed", "number"), OF_LONG_RUNS)
@pytest.mark.parametrize(
    "calls",
    [checks.on_numpy, checks.on_torch, checks.on_torch_operations],
    ids=lambda f: f.__name__,
)
def test_the_same_batches_on_other_backends(calls, seed, number):
    if "torch" in calls.__name__:
        pytest.importorskip("torch")
    name = "operations" if calls is checks.on_torch_operations else "other"
    assert_no_failure(draw_varied(seed, number, 0.004, 0.02), {name: calls})


@pytest.mark.parametrize("isa", instruction_sets())
def test_flat_surrogates_with_kinks_and_an_outlier(isa):
    flat = polynomial("flat", (0.1, -1, 0, None), (0.5, 1, -1, 0.7), (3.0, 0, 1, 1.0))
    rng = np.random.default_rng(0)
    batch = replace(draw(0, 0, large=0.0), surrogate=flat, weights=None, groups=None)
    for distance in 10.0 ** np.arange(12):
        labels = np.arange(40) % 3 == 0
        scores, vector = rng.normal(size=40), rng.normal(size=40)
        scores[1] = distance
        changed = replace(batch, scores=scores, labels=labels, vector=vector, margin=0.3)
        assert_no_failure(changed, {isa: checks.native(isa)})


@pytest.mark.parametrize("isa", instruction_sets())
def test_varied_batches(isa):
    for number in range(60):
        assert_no_failure(draw_varied(23, number, 0.0, 1.0), {isa: checks.native(isa)})


def test_scores_next_to_the_largest_float_without_a_pair():
    assert_no_failure(draw_varied(22, 825, 0.0, 0.8), {"numpy": checks.on_numpy})


def test_heavy_pairs_beyond_both_knots_do_not_change_the_hessian_of_light_ones():
    scores, labels = [-9.0, 0.0, 0.5, 0.25], [1, 1, 0, 0]
    weights, vector = np.array([1e5, 1e-5, 1e-5, 1e-5]), [0.7, 1.0, -1.0, 0.3]
    options = {"surrogate": "huber_hinge", "margin": 0.1, "reduction": "sum"}
    found = ep.pair_hvp(scores, labels, vector, weights=weights, **options)
    expected = ep.naive.pair_hvp(scores, labels, vector, weights=weights, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("surrogate", ["huber_hinge", "square", "logistic", "exponential"])
@pytest.mark.parametrize("factor", [1e-300, 1e100, 1e300])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_vectors_of_any_size(surrogate, factor, reduction):
    rng = np.random.default_rng(0)
    labels = np.arange(50) % 3 == 0
    scores, vector = rng.normal(size=50) + labels, rng.normal(size=50)
    options = {"surrogate": surrogate, "reduction": reduction}
    expected = ep.pair_hvp(scores, labels, vector, **options)
    found = ep.pair_hvp(scores, labels, factor * vector, **options) / factor
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_denormal_weights_of_survival_times_in_torch():
    pytest.importorskip("torch")
    batch = draw_varied(21, 98, 0.0, 1.0)
    assert_no_failure(batch, {"operations": checks.on_torch_operations})


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
