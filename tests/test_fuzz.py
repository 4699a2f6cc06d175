"""A short run of `python -m tests.fuzz`, on every instruction set and backend of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import everypair as ep
from benchmarks.instruction_sets import instruction_sets
from everypair.kernel import choose

from . import extreme_cases
from .fuzz import checks
from .fuzz.__main__ import describe, main
from .fuzz.oracle import exact
from .fuzz.variants import draw_varied
from .strategies import SURROGATES, batches, double_sum
from .tolerances import assert_close


@pytest.fixture(scope="module", params=["native", "numpy and torch"])
def backends(request):
    if request.param == "native":
        yield {isa: checks.native(isa) for isa in instruction_sets()}
        for isa in instruction_sets()[-1:]:
            choose.native.kernel.use_isa(isa)
    else:
        yield checks.OTHERS


# Seed, share of large and of varied batches, numbers.
DRAWN = [
    (2, 0.0, 0.0, range(250)),
    (2, 0.0, 0.0, range(250, 500)),
    (23, 0.0, 1.0, range(60)),
    (3, 1.0, 0.0, (1, 4, 5)),  # next to the limits between plans
    # Batches that an earlier version got wrong.
    # Margins next to the largest double, denormal scores, and an outlier as the least positive.
    (0, 0.004, 0.0, (34447, 48240, 50625, 56751, 82434)),
    # Equal entries of the vector for heavy rows, a slope that vanishes up to rounding, and weights
    # whose product with the factor of the sum underflows where the gradient does not.
    (5, 0.004, 0.0, (7555, 8130, 76406)),
    # Squares of 1e18 that cancel to a line, and a margin that cancels scores of 1e100.
    (12, 0.004, 0.0, (58810, 98728)),
    # Weights of 1e-170 times exponentials, shifts next to scores of 1e38 and 1e288, a loss of 0
    # times weights of 1e600, denormal weights of survival times, and the largest scores.
    (20, 0.0, 1.0, (81,)),
    (21, 0.0, 1.0, (5, 98, 141, 616)),
    (22, 0.0, 0.8, (83, 825)),
    # Terms that cancel one without a knot, at scores of 1e37 and at a margin of 1e100.
    (40, 0.004, 0.02, (64912, 80390)),
    # A pair 5e-16 from its vertex, and a group that is lighter than another by 300 decades.
    (42, 0.004, 0.02, (68370, 84755)),
    # Smooth losses next to the largest float, a margin of 1e308, denormal weights of a sum, slopes
    # that cancel up to rounding, and denormal scores.
    (50, 0.004, 0.02, (3460, 33067, 34509, 55872, 99046)),
    (51, 0.004, 0.02, (35185,)),
    # Light rows whose slope two terms make, next to much heavier rows beyond both knots.
    (52, 0.004, 0.02, (48546,)),
    # Exponential factors of 438 rows that are nearly 1, whose rounding errors added up in products
    # of the Hessian and a vector; a pair that is rounded onto its knot; and a loss of 1e-311.
    (60, 0.004, 0.03, (7654, 10836, 34169)),
    # A term without a knot next to terms with one, for outliers of 1e20 and weights over 300
    # decades: its sums from one end had no correct digit at the other.
    (62, 0.004, 0.0, (17925,)),
    (63, 0.004, 0.0, (31310,)),
    (65, 0.004, 0.0, (71399,)),
    # Scores and weights over 500 and 300 decades in three groups, whose running sums are one.
    (64, 0.004, 0.0, (92124,)),
    # A product of the Hessian whose level overflows: survival times, weights over 300 decades.
    (92, 0.004, 0.02, (30421,)),
    # A product of a steep exponential's Hessian, next to the largest double; a gradient of 1e-317.
    (111, 0.004, 0.02, (23697, 50473)),
    # A score and a margin whose sum overflows.
    (113, 0.004, 0.02, (3847,)),
]


@pytest.mark.parametrize(("seed", "large", "varied", "numbers"), DRAWN)
def test_random_batches(backends, seed, large, varied, numbers):
    for number in numbers[: 25 if backends is checks.OTHERS else None]:
        batch = draw_varied(seed, number, large, varied)
        for backend, checked in checks.check(batch, backends):
            assert checked.error <= 1.0, f"{describe(batch)}: {backend} {checked}"


def test_heavy_pairs_beyond_both_knots_do_not_change_the_hessian_of_light_ones():
    scores, labels = [-9.0, 0.0, 0.5, 0.25], [1, 1, 0, 0]
    weights, vector = np.array([1e5, 1e-5, 1e-5, 1e-5]), [0.7, 1.0, -1.0, 0.3]
    options = {"surrogate": "huber_hinge", "margin": 0.1, "reduction": "sum"}
    found = ep.pair_hvp(scores, labels, vector, weights=weights, **options)
    expected = ep.naive.pair_hvp(scores, labels, vector, weights=weights, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@given(batch=batches(), surrogate=st.sampled_from(SURROGATES))
def test_the_oracle_equals_the_double_sum(batch, surrogate):
    knobs = {"vector": batch.vector, "surrogate": surrogate, **batch.knobs}
    found = exact(extreme_cases.batch(batch.scores, batch.labels, batch.dtype, **knobs))
    expected = double_sum(batch, surrogate)
    for field in ("value", "grad", "hess", "hvp"):
        assert_close(getattr(found, field), getattr(expected, field), np.float64)


def test_the_command_repeats_a_batch(capsys):
    assert main(["--seed", "2", "--first", "7", "--batches", "1", "--others", "0"]) == 0
    assert "1 batches from 7 of seed 2" in capsys.readouterr().out
