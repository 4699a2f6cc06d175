"""Sums over all other rows for each row, against the double sum; soft ranks."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

import everypair as ep
from everypair import naive, surrogates
from everypair.kernel import choose
from everypair.surrogates import Surrogate

from .strategies import SMOOTH, SURROGATES, batches
from .tolerances import RELATIVE, assert_close

surrogate_of = st.sampled_from((*SURROGATES, *SMOOTH, surrogates.sigmoid(0.25)))
native = choose.native.kernel
pytestmark = pytest.mark.usefixtures("kernel")


def parts(batch, surrogate):
    """Split a batch into rows, others and the options of `pair_row_sums`."""
    pos, weights, groups = batch.positive, batch.knobs["weights"], batch.knobs["groups"]
    options = {"surrogate": surrogate, "margin": batch.knobs["margin"]}
    if weights is not None:
        options["weights"] = weights[~pos]
    if groups is not None:
        options |= {"groups": groups[pos], "other_groups": groups[~pos]}
    return batch.scores[pos], batch.scores[~pos], options


def absolute(scores, others, surrogate, **options):
    """Return the sums of the absolute values of all terms, which errors are relative to."""
    terms = surrogate.terms
    options["weights"] = np.abs(options["weights"]) if "weights" in options else None
    sums = []
    for term in terms:
        alone = Surrogate("alone", (term,), surrogate.default_margin)
        margin = options["margin"]
        t = margin - (scores[:, None].astype(float) - others.astype(float))
        w = np.ones(len(others)) if options["weights"] is None else options["weights"]
        if options.get("groups") is not None:
            w = w * (options["groups"][:, None] == options["other_groups"])
        sums.append((np.abs(alone.value(t)) * w).sum(axis=1))
    return np.sum(sums, axis=0)


def assert_every_entry(got, expected, scale, dtype):
    assert got.shape == expected.shape
    assert (np.abs(got - expected) <= RELATIVE[np.dtype(dtype)] * scale + 1e-300).all()


@given(batch=batches(), surrogate=surrogate_of)
def test_every_entry_equals_the_double_sum(batch, surrogate):
    rows, others, options = parts(batch, surrogate)
    got = ep.pair_row_sums(rows, others, **options)
    assert got.dtype == batch.dtype
    if rows.size and others.size:
        expected = naive.pair_row_sums(rows, others, **options)
        assert_every_entry(got, expected, absolute(rows, others, **options), batch.dtype)
    else:
        assert not got.any()


@given(batch=batches(), surrogate=surrogate_of)
def test_without_others_rows_are_compared_with_each_other(batch, surrogate):
    weights = -batch.vector  # of both signs
    options = {"surrogate": surrogate, "margin": batch.knobs["margin"], "weights": weights}
    groups = batch.knobs["groups"]
    got = ep.pair_row_sums(batch.scores, groups=groups, **options)
    expected = naive.pair_row_sums(batch.scores, groups=groups, **options)
    all_groups = {} if groups is None else {"groups": groups, "other_groups": groups}
    scale = absolute(batch.scores, batch.scores, **options, **all_groups)
    assert_every_entry(got, expected, scale, batch.dtype)


@cache  # both kernels are compared with the same sums
def spread_rows(sizes, dtype, name, scale, offset):
    """Return rows and others, of which many are tied, and the double sums of the rows."""
    rng = np.random.default_rng(0)
    rows, others = ((rng.normal(size=n) * scale + offset).astype(dtype) for n in sizes)
    rows[::3] = others[rng.integers(0, len(others), len(rows[::3]))]
    return rows, others, naive.pair_row_sums(rows, others, surrogate=name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sizes", [(3000, 40), (40, 3000), (1500, 1500)])
def test_large_offsets_and_spreads(sizes, dtype):
    for name in ("sigmoid", "logistic", "squared_softplus", "squared_hinge", "linear_hinge"):
        for scale, offset in ((1.0, 1e6), (1e-6, 0.0), (1e6, 0.0), (30.0, -5.0)):
            rows, others, expected = spread_rows(sizes, dtype, name, scale, offset)
            got = ep.pair_row_sums(rows, others, surrogate=name)
            assert_every_entry(got, expected, np.maximum(expected, 1e-30), dtype)


@pytest.mark.parametrize("sizes", [(200, 5000), (5000, 200), (700, 700)])
@pytest.mark.parametrize("grouped", [False, True])
def test_every_instruction_set_equals_the_double_sum(sizes, grouped, kernel):
    """More knots than one run has, intervals with many points, and ties between both."""
    if kernel == "numpy":
        pytest.skip("NumPy has no instruction sets")
    rng = np.random.default_rng(4)
    rows, others = (rng.normal(size=n) for n in sizes)
    rows[::3] = others[rng.integers(0, len(others), len(rows[::3]))]
    options = {"margin": 0.3, "weights": rng.random(len(others))}
    if grouped:
        codes = (rng.integers(0, 7, n) for n in sizes)
        options |= dict(zip(("groups", "other_groups"), codes, strict=True))
    names = ("sigmoid", "logistic", "squared_hinge")
    sums = {name: naive.pair_row_sums(rows, others, surrogate=name, **options) for name in names}
    try:
        for isa in native.isas():
            native.use_isa(isa)
            for name, expected in sums.items():
                got = ep.pair_row_sums(rows, others, surrogate=name, **options)
                np.testing.assert_allclose(got, expected, rtol=1e-12, err_msg=isa)
    finally:
        native.use_isa(native.isas()[-1])


@pytest.mark.parametrize("n_groups", [1, 3000])
def test_sums_do_not_depend_on_the_number_of_threads(n_groups, kernel):
    rng = np.random.default_rng(5)
    n = 300_000 if kernel == "native" else 30_000  # NumPy uses one thread for any number of rows
    scores, groups = rng.normal(size=n), rng.integers(0, n_groups, n)
    found = []
    try:
        for threads in (1, 3):
            ep.set_num_threads(threads)
            found.append(ep.pair_row_sums(scores, groups=groups))
    finally:
        ep.set_num_threads(None)
    np.testing.assert_array_equal(*found)


def test_equally_spaced_rows_keep_their_digits():
    """The same rounding error at each of 20,000 steps would add up to 1e-12 and more."""
    scores = np.arange(20_000) * 0.0123
    got = ep.pair_row_sums(scores, surrogate=surrogates.sigmoid(temperature=3.0))
    some = slice(None, None, 500)
    differences = (scores - scores[some, None]) / 3.0
    expected = (1.0 / (1.0 + np.exp(-differences))).sum(axis=1) - 0.5
    np.testing.assert_allclose(got[some], expected, rtol=1e-12)


def test_clusters_of_ties_are_found_too():
    """Many knots in one cell of the search, and points on the knots themselves."""
    rng = np.random.default_rng(2)
    others = np.concatenate([np.repeat(0.25, 300), rng.normal(size=50), [1e9]])
    rows = np.concatenate([rng.normal(size=6000), np.repeat(0.25, 50)])
    jump = Surrogate("jump", (surrogates.Term(1.0, 0.0, 0.0, knot=0.0),), default_margin=0.0)
    got = ep.pair_row_sums(rows, others, surrogate=jump)
    np.testing.assert_array_equal(got, (others > rows[:, None]).sum(axis=1))


def test_pairs_on_a_knot_are_decided_exactly():
    # 0.1 + 0.2 > 0.3 as real numbers that these floats are, and the rounded sum is larger yet.
    options = {"surrogate": "linear_hinge", "margin": 0.2}
    got = ep.pair_row_sums([0.3, 0.1 + 0.2], [0.1], **options)
    np.testing.assert_allclose(got, naive.pair_row_sums([0.3, 0.1 + 0.2], [0.1], **options))
    assert got[0] > 0.0 == got[1]


@pytest.mark.parametrize("name", surrogates.names())
def test_finite_scores_never_give_nan(name):
    scores = [1e300, -1e300, 0.0, 1.0, 1e306]
    if name in ("square", "squared_hinge", "huber_hinge", "squared_softplus", "exponential"):
        with pytest.raises(OverflowError, match="exceed the range of float64"):
            ep.pair_row_sums([*scores, -1e308, 1e308], surrogate=name)
    else:
        assert not np.isnan(ep.pair_row_sums(scores, surrogate=name)).any()


def test_shapes_and_types():
    column = np.array([[1.0], [2.0]], np.float16)
    assert ep.pair_row_sums(column).shape == (2, 1)
    assert ep.pair_row_sums(column).dtype == np.float32
    assert ep.pair_row_sums([1, 2]).dtype == np.float64
    assert ep.pair_row_sums(np.float32([1]), np.float64([1])).dtype == np.float64
    assert ep.pair_row_sums([], [1.0]).shape == (0,)
    np.testing.assert_array_equal(ep.pair_row_sums([1.0, 2.0], []), [0.0, 0.0])
    np.testing.assert_array_equal(ep.pair_row_sums([3.0]), [0.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([np.nan],), "scores must be finite"),
        (([0.0], [np.inf]), "others must be finite"),
        (([0.0], [0.0], {"weights": [1.0, 2.0]}), "weights must have one entry"),
        (([0.0], [0.0], {"weights": [np.nan]}), "weights must be finite"),
        (([0.0], [0.0], {"groups": [0]}), "given together"),
        (([0.0], {"other_groups": [0]}), "given together"),
        (([0.0], {"groups": [0, 1]}), "groups must have one entry per row; got 2 for 1"),
        (([0.0], {"margin": -1.0}), "margin must be"),
        (([0.0], {"surrogate": "steep"}), "surrogate must be one of"),
    ],
)
def test_errors(arguments, message):
    options = arguments[-1] if isinstance(arguments[-1], dict) else {}
    arrays = arguments[: -1 if options else None]
    with pytest.raises(ValueError, match=message):
        ep.pair_row_sums(*arrays, **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["sigmoid", "squared_softplus", "squared_hinge"])
def test_a_heavy_group_costs_the_other_groups_no_digits(name, dtype):
    rng = np.random.default_rng(6)
    scores, groups = rng.normal(size=60).astype(dtype), np.arange(60) % 3
    weights = rng.random(60) * np.where(groups == 1, 1e12, 1.0)
    got = ep.pair_row_sums(scores, groups=groups, weights=weights, surrogate=name)
    for group in range(3):
        rows = groups == group
        expected = naive.pair_row_sums(scores[rows], weights=weights[rows], surrogate=name)
        np.testing.assert_allclose(got[rows], expected, rtol=RELATIVE[np.dtype(dtype)])


def test_groups_of_any_kind():
    got = ep.pair_row_sums([0.0, 0.0, 0.0], groups=["a", "b", "a"])
    np.testing.assert_allclose(got, [0.5, 0.0, 0.5], rtol=1e-12)
    got = ep.pair_row_sums([0.0, 0.0], [0.0, 0.0], groups=["1", "2"], other_groups=[1, 2])
    np.testing.assert_array_equal(got, [0.0, 0.0])


@given(batch=batches(groups=False))
def test_cold_soft_ranks_are_ranks(batch):
    gap = np.diff(np.unique(batch.scores.astype(float)), append=np.inf).min()
    temperature = min(gap / 50.0, 1.0)
    got = ep.soft_ranks(batch.scores, temperature)
    assert_close(got, rankdata(batch.scores), batch.dtype)


def test_the_temperature_of_soft_ranks_is_1_by_default():
    # 1 / (1 + exp(-log(3))) is 3/4.
    np.testing.assert_allclose(ep.soft_ranks([0.0, np.log(3.0)]), [1.25, 1.75], rtol=1e-12)


@given(batch=batches(groups=True), temperature=st.sampled_from([0.01, 1.0, 100.0]))
def test_soft_ranks_of_a_group_add_up(batch, temperature):
    groups = batch.knobs["groups"]
    got = ep.soft_ranks(batch.scores, temperature, groups=groups)
    for group in np.unique(groups):
        n = (groups == group).sum()
        assert got[groups == group].sum() == pytest.approx(n * (n + 1) / 2, rel=1e-6)
        alone = ep.soft_ranks(batch.scores[groups == group], temperature)
        assert_close(got[groups == group], alone, batch.dtype)
