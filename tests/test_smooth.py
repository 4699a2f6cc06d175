"""Smooth surrogates: proven errors of the fits, every gradient entry, margins and `fit`."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import everypair as ep
from everypair import naive, surrogates
from everypair.kernel import choose
from everypair.kernel.native import native_form
from everypair.surrogates import Surrogate, Term

NAMES = ("logistic", "sigmoid", "exponential", "squared_softplus")
FITTED = ("logistic", "sigmoid", "squared_softplus")
# On both sides, from shortfalls of almost 0 to those whose loss is below the smallest float32.
DISTANCES = np.concatenate([np.linspace(0.0, 90.0, 20_001), np.geomspace(1e-12, 1.0, 200)])
T = np.concatenate([-DISTANCES, DISTANCES])


def formulas(name, t):
    """Return value, slope and curvature in long double precision."""
    t = t.astype(np.longdouble)
    x = np.exp(-abs(t))
    softplus = np.maximum(t, 0) + np.log1p(x)
    below, above = x / (1 + x), 1 / (1 + x)
    sigmoid, other = np.where(t > 0, above, below), np.where(t > 0, below, above)
    bend = sigmoid * other
    return {
        "logistic": (softplus, sigmoid, bend),
        "sigmoid": (sigmoid, bend, -bend * np.tanh(t / 2)),
        "squared_softplus": (
            softplus**2,
            2 * softplus * sigmoid,
            2 * sigmoid**2 + 2 * softplus * bend,
        ),
    }[name]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FITTED)
def test_fits_stay_within_their_proven_bounds(name, dtype):
    surrogate = surrogates.get(name)
    smooth = surrogate.terms[-1]
    (table,), _ = surrogates.tables(surrogate.at_margin(0.0), dtype is np.float64)
    fits = smooth.high if dtype is np.float64 else smooth.low
    size = np.abs(T).astype(np.longdouble)
    for order, expected in enumerate(formulas(name, T)):
        polynomial = np.where(T > 0, _hinge(surrogate.terms[0], T, order), 0)
        powers = np.exp(-size) ** np.arange(1, table.c.shape[-1] + 1)[:, None]
        c, e = (np.where(T > 0, *a[order, ::-1, :, None]) for a in (table.c, table.e))
        parts = (c + e * size) * powers
        got = polynomial + parts.sum(axis=0)
        # The coefficients are rounded to float64.
        rounding = 2.0**-52 * np.abs(parts).sum(axis=0)
        assert (abs(got - expected) <= fits[order].bound * abs(expected) + rounding).all()
        assert fits[order].bound < (5e-14 if dtype is np.float64 else 5e-8)


def _hinge(term, t, order):
    t = t.astype(np.longdouble)
    return (
        term.c0 + term.c1 * t + term.c2 * t**2,
        term.c1 + 2 * term.c2 * t,
        2 * term.c2 + 0 * t,
    )[order]


@pytest.mark.parametrize("name", NAMES)
def test_textbook_formulas(name):
    t = np.linspace(-30.0, 30.0, 121)
    assert set(naive.SMOOTH) == set(NAMES)
    expected = (np.exp(t),) * 3 if name == "exponential" else formulas(name, t)
    for got, want in zip(naive.SMOOTH[name](t), expected, strict=True):
        np.testing.assert_allclose(got, np.asarray(want, np.float64), rtol=1e-14, atol=1e-16)


def hostile_batches(dtype):
    """Yield scores with offsets and spreads from 1e-6 to 1e6 temperatures, ties included."""
    rng = np.random.default_rng(0)
    for n, scale, offset in (
        (300, 1.0, 0.0),
        (700, 1.0, 1e6),
        (300, 1e-6, 0.0),
        (300, 1e6, 0.0),
        (1500, 30.0, -5.0),
        (3, 1.0, 0.0),
    ):
        scores = rng.normal(size=n) * scale + offset
        scores[n // 2 :] = scores[n // 2 :].round(1)
        yield scores.astype(dtype), np.arange(n) % 3 == 0, rng.random(n), rng.integers(0, 5, n)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NAMES)
def test_every_entry_of_the_gradient_is_right(name, dtype):
    tolerance = 1e-6 if dtype is np.float32 else 1e-12
    smallest = 1e-37 if dtype is np.float32 else 1e-290
    for scores, labels, weights, groups in hostile_batches(dtype):
        if name == "exponential" and np.ptp(scores) > (60.0 if dtype is np.float32 else 600.0):
            continue
        decades = 10.0 ** (290.0 * weights - 145.0)
        for data in (
            {"reduction": "sum"},
            {"reduction": "sum", "weights": weights, "groups": groups},
            {"reduction": "mean", "weights": decades},
        ):
            knobs = {"surrogate": name, **data}
            loss, grad = ep.pair_loss_and_grad(scores, labels, **knobs)
            value, expected = naive.pair_loss_and_grad(scores.astype(float), labels, **knobs)
            seen = np.abs(expected) > smallest
            error = np.abs(grad[seen] / expected[seen] - 1.0).max(initial=0.0)
            assert error <= tolerance
            assert loss == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize("share", [0.01, 0.5])
# In the compiled kernel, the first two use buckets and the last one sorts.
@pytest.mark.parametrize("spread", [0.3, 20.0, 1e4])
def test_derivatives_with_ties_weights_and_a_rare_class(name, dtype, share, spread):
    rng = np.random.default_rng(6)
    n = 2000
    labels = rng.random(n) < share
    scores = rng.normal(size=n)
    scores[::5] = scores[::5].round(1)
    scores = (scores * spread + 1e3).astype(dtype)
    rtol = 1e-12 if dtype is np.float64 else 1e-6
    for weights in (None, rng.integers(0, 3, n).astype(float), 10.0 ** rng.uniform(-150, 150, n)):
        options = {"surrogate": name, "margin": 0.3, "weights": weights}
        got = ep.pair_derivatives(scores, labels, **options)
        value, grad, hess = naive.pair_derivatives(scores.astype(float), labels, **options)
        seen = abs(grad) > (1e-30 if dtype is np.float32 else 1e-290)
        assert got.value == pytest.approx(value, rel=rtol)
        np.testing.assert_allclose(got.grad[seen], grad[seen], rtol=rtol)
        # Results below the smallest float32 are 0. The curvature of the sigmoid crosses 0.
        atol = rtol * abs(hess).max() + (1e-37 if dtype is np.float32 else 0.0)
        np.testing.assert_allclose(got.hess, hess, rtol=100 * rtol, atol=atol)


@pytest.mark.usefixtures("kernel")
def test_slopes_far_from_all_other_rows():
    """The sums are carried over hundreds of temperatures, and over buckets without a row."""
    rng = np.random.default_rng(7)
    for far in (np.linspace(0.0, 600.0, 5000), rng.uniform(300.0, 310.0, 3000)):
        scores = np.concatenate([far, rng.normal(size=500)])
        labels = np.repeat([1, 0], [len(far), 500])
        for sign in (1.0, -1.0):
            options = {"surrogate": "logistic", "reduction": "sum"}
            loss, grad = ep.pair_loss_and_grad(sign * scores, labels, **options)
            value, expected = naive.pair_loss_and_grad(sign * scores, labels, **options)
            np.testing.assert_allclose(grad, expected, rtol=1e-12)
            assert loss == pytest.approx(value, rel=1e-12)


def test_functions_that_have_no_buckets():
    """Powers of the curvature of the sigmoid cancel too much for float64; others have a kink."""
    for name, width in (("logistic", 0.125), ("sigmoid", 0.0)):
        terms = getattr(surrogates, name)(1.0).at_margin(0.0)
        assert native_form(terms, True, True)[1].term[-1] == width
    laplace = surrogates.fit(lambda t: np.exp(-np.abs(t)) / 2, rate=1.0, name="laplace")
    form = native_form(laplace.at_margin(0.0), True, False)[1]
    assert form.term[-1] == 0.0
    assert form.series is form.inside is None


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("name", ["logistic", "sigmoid"])
@pytest.mark.parametrize("scores", [[1e300, -1e300, 0.0, 1.0], [1e306, -1e306, -1e306, 1e306]])
def test_finite_scores_never_give_nan(name, scores):
    for labels in ([1, 0, 1, 0], [0, 1, 1, 0], [1, 1, 1, 1]):
        for weights in (None, [1.0, 0.0, 1e-300, 1.0]):
            knobs = {"surrogate": name, "weights": weights}
            found = ep.pair_derivatives(scores, labels, **knobs)
            assert not any(np.isnan(part).any() for part in found)
            assert not np.isnan(ep.pair_hvp(scores, labels, [1.0, 2.0, 3.0, 4.0], **knobs)).any()


@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-3, 0.1, 1.0])
@pytest.mark.parametrize("n", [2, 10, 300, 20_000])
@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 2e-11), (np.float32, 2e-7)])
def test_the_error_of_the_curvature_of_the_sigmoid_is_one_of_its_largest_value(
    backend, dtype, error, n, spread
):
    scores = (spread * np.random.default_rng(n).normal(size=n)).astype(dtype)
    labels = np.arange(n) % (2 if n < 1000 else 1000) == 0
    curvatures = formulas(
        "sigmoid", scores[~labels] - scores[labels].astype(np.longdouble)[:, None]
    )[2]
    hess = backend.derivatives(scores, labels, surrogate="sigmoid", reduction="sum")[2]
    for found, axis in ((hess[labels], 1), (hess[~labels], 0)):
        expected = curvatures.sum(axis)
        assert abs(found - expected).max() <= error * 0.0962 * curvatures.shape[axis]


def test_a_large_score_of_the_other_class_does_not_hide_the_others(backend):
    scores, labels = [-900.0, -600.0, 0.0, -1000.0], [1, 1, 1, 0]
    grad = backend.loss_and_grad(scores, labels, surrogate="exponential")[1]
    np.testing.assert_allclose(grad[:2], -np.exp([-100.0, -400.0]) / 3, rtol=1e-12)


# Labels with which the first row should score higher than the last.
KINDS = {"binary": [1, 1, 0], "ordered": [3, 2, 1], "survival": [1, 2, 3]}


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 1.0]])
@pytest.mark.parametrize("pairs", KINDS)
def test_an_exponential_loss_that_overflows_is_an_error_for_all_pairs(backend, pairs, weights):
    knobs = {"surrogate": "exponential", "pairs": pairs, "weights": weights}
    largest = backend.loss([0.0, 350.0, 708.0], KINDS[pairs], **knobs)
    assert largest == pytest.approx(naive.pair_loss([0.0, 350.0, 708.0], KINDS[pairs], **knobs))
    for function, *vector in (
        (backend.loss,),
        (backend.loss_and_grad,),
        (backend.derivatives,),
        (backend.hvp, [1.0, 2.0, 3.0]),
    ):
        for scores in ([0.0, 350.0, 720.0], [0.0, 800.0, 1650.0]):
            with pytest.raises(OverflowError, match="range of float64"):
                function(scores, KINDS[pairs], *vector, **knobs)


def test_a_derivative_that_overflows_is_an_error(backend):
    sharp = surrogates.exponential(temperature=1e-3)
    assert backend.loss([0.0, 0.708], [1, 0], surrogate=sharp) == pytest.approx(np.exp(708.0))
    for function in (backend.loss_and_grad, backend.derivatives):
        with pytest.raises(OverflowError, match="range of float64"):
            function([0.0, 0.708], [1, 0], surrogate=sharp)


def test_a_row_sum_that_overflows_is_an_error(backend):
    for scores, name in (([0.0, 800.0], "exponential"), ([0.0, 1e200], "square")):
        with choose.backend(backend.name), pytest.raises(OverflowError, match="float64"):
            ep.pair_row_sums(scores, surrogate=name)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("groups", [None, [0, 1] * 10])
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_weight_0_change_nothing_at_any_offset(name, groups):
    rng = np.random.default_rng(2)
    scores, labels = rng.normal(size=20) + 1e4, np.arange(20) % 3 == 0
    kept = np.arange(20) % 7 > 0
    knobs = {"surrogate": name, "weights": kept, "groups": groups}
    alone = {"surrogate": name, "groups": None if groups is None else np.array(groups)[kept]}
    got = ep.pair_derivatives(scores, labels, **knobs)
    expected = naive.pair_derivatives(scores[kept], labels[kept], **alone)
    for found, right in zip(got[1:], expected[1:], strict=True):
        np.testing.assert_allclose(found[kept], right, rtol=1e-11)
        assert not found[~kept].any()
    assert got[0] == pytest.approx(expected[0], rel=1e-11)
    hvp = ep.pair_hvp(scores, labels, scores, **knobs)
    np.testing.assert_allclose(
        hvp[kept], ep.pair_hvp(scores[kept], labels[kept], scores[kept], **alone), rtol=1e-9
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0.01, 7.0])
def test_a_temperature_scales_the_scores(name, temperature):
    rng = np.random.default_rng(1)
    scores, labels = rng.normal(size=80), rng.random(80) < 0.4
    warm = getattr(surrogates, name)(temperature=temperature)
    got = ep.pair_derivatives(scores, labels, surrogate=warm)
    by_formula = naive.pair_derivatives(scores, labels, surrogate=warm)
    value, grad, hess = naive.pair_derivatives(scores / temperature, labels, surrogate=name)
    for found in (got, by_formula):
        np.testing.assert_allclose(found[0], value, rtol=1e-12)
        np.testing.assert_allclose(found[1], grad / temperature, rtol=1e-12)
        size = np.abs(hess).max() / temperature**2
        np.testing.assert_allclose(found[2], hess / temperature**2, rtol=0, atol=2e-12 * size)


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan, "1"])
def test_invalid_temperatures(temperature):
    with pytest.raises(ValueError, match="temperature must be"):
        surrogates.logistic(temperature=temperature)


@pytest.mark.parametrize("name", surrogates.names())
def test_without_a_margin_each_surrogate_has_its_own(name):
    margin = 0.0 if name in NAMES else 1.0
    data = [0.3, 0.1, 0.2, 0.9], [1, 0, 1, 0]
    assert surrogates.get(name).default_margin == margin
    for functions in (ep, naive):
        assert functions.pair_loss(*data, surrogate=name) == functions.pair_loss(
            *data, surrogate=name, margin=margin
        )
    for function in (ep.pair_loss, ep.pair_loss_and_grad, ep.pair_derivatives, ep.pair_hvp):
        assert inspect.signature(function).parameters["margin"].default is None


@pytest.mark.usefixtures("kernel")
def test_a_mixed_surrogate_is_the_sum_of_its_terms():
    rng = np.random.default_rng(2)
    scores, labels = rng.normal(size=60), rng.random(60) < 0.3
    parts = [
        surrogates.logistic(0.3),
        surrogates.HUBER_HINGE,
        surrogates.SQUARE,
        surrogates.exponential(),
    ]
    mixed = Surrogate("mixed", sum((part.terms for part in parts), ()))
    got = ep.pair_derivatives(scores, labels, surrogate=mixed, margin=0.4)
    each = [ep.pair_derivatives(scores, labels, surrogate=p, margin=0.4) for p in parts]
    for k in range(3):
        np.testing.assert_allclose(got[k], sum(part[k] for part in each), rtol=1e-12)


def test_scaled_stretches_and_multiplies():
    t = np.linspace(-3.0, 3.0, 25)
    for name in surrogates.names():
        surrogate = surrogates.get(name)
        got = surrogate.scaled(0.5, factor=3.0)
        np.testing.assert_allclose(got.value(t), 3.0 * surrogate.value(t / 2), rtol=1e-14)
        np.testing.assert_allclose(got.slope(t), 1.5 * surrogate.slope(t / 2), rtol=1e-14)
        assert got.default_margin == 2.0 * surrogate.default_margin


def tanh_slope(t):
    return 1.0 / np.cosh(np.minimum(np.abs(t), 1000.0)) ** 2


@pytest.mark.parametrize("tolerance", [1e-6, 1e-12])
def test_fit_gives_a_surrogate_of_a_function(tolerance):
    limits = {"rate": 2.0, "below": (-1, 0, 0), "above": (1, 0, 0)}
    mine = surrogates.fit(np.tanh, tolerance, slope=tanh_slope, **limits)
    assert mine.name == "tanh"
    assert mine.terms[-1].high.value.bound <= tolerance
    np.testing.assert_allclose(mine.value(T), np.tanh(T), atol=tolerance)
    np.testing.assert_allclose(mine.slope(T), tanh_slope(T), atol=2 * tolerance)
    rng = np.random.default_rng(3)
    pos, neg = rng.normal(size=(2, 20))
    shortfalls = neg - pos[:, None]
    loss, grad = ep.pair_loss_and_grad(
        np.concatenate([pos, neg]), np.repeat([1, 0], 20), surrogate=mine, reduction="sum"
    )
    assert loss == pytest.approx(np.tanh(shortfalls).sum(), abs=400 * tolerance)
    np.testing.assert_allclose(grad[20:], tanh_slope(shortfalls).sum(axis=0), atol=40 * tolerance)


def test_fit_finds_kinks_and_short_series():
    laplace = surrogates.fit(lambda t: np.exp(-np.abs(t)) / 2, rate=1.0, name="laplace")
    assert laplace.terms[0].high.value.above == ((0.5, 0.0),)
    np.testing.assert_allclose(laplace.slope([-1.0, 1.0]), np.array([1, -1]) / 2 / np.e, rtol=1e-12)
    hinge = surrogates.fit(lambda t: np.logaddexp(0, t), above=(0, 1, 0), name="softplus")
    assert hinge.terms[0] == Term(0, 1, 0, knot=0)
    np.testing.assert_allclose(hinge.value(T), np.logaddexp(0, T), rtol=2e-12)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (lambda t: 1 / (1 + t**2), {}, r"does not approach below=\(0.0, 0.0, 0.0\) as fast"),
        (np.tanh, {}, r"does not approach below=\(0.0, 0.0, 0.0\)"),
        (lambda t: np.exp(-(t**2)), {}, "converges too slowly with rate=1"),
        (lambda t: t[:3], {}, "function must return finite values"),
        (np.exp, {}, "'exp' has an error of"),
        (np.tanh, {"tolerance": 1e-15}, "tolerance must be at least 1e-13"),
        (np.tanh, {"rate": -1.0}, "rate above 0"),
    ],
)
def test_fit_says_why_it_does_not_converge(function, options, message):
    with pytest.raises(ValueError, match=message):
        surrogates.fit(function, **options)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("n_groups", [1, 7])
def test_sums_are_carried_over_many_blocks(n_groups):
    rng = np.random.default_rng(4)
    n = 40_000
    scores, labels = 3.0 * rng.normal(size=n), rng.random(n) < 0.3
    weights, groups = rng.random(n), rng.integers(0, n_groups, n)
    data = {"weights": weights, "groups": groups}
    _, grad = ep.pair_loss_and_grad(scores, labels, surrogate="logistic", reduction="sum", **data)
    for i in [int(np.argmin(scores)), int(np.argmax(scores)), *range(20)]:
        others = np.flatnonzero((labels != labels[i]) & (groups == groups[i]))
        sign = -1.0 if labels[i] else 1.0
        slopes = formulas("logistic", sign * (scores[i] - scores[others]))[1]
        expected = float(sign * weights[i] * (weights[others] * slopes).sum())
        assert grad[i] == pytest.approx(expected, rel=1e-12)


@pytest.fixture
def native():
    kernel = pytest.importorskip("everypair._native")
    yield kernel
    kernel.use_isa(kernel.isas()[-1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [7, 5000])
def test_the_compiled_exponential_of_scores_far_out(monkeypatch, native, n, dtype):
    def refuse(*args, **knobs):
        raise AssertionError("the compiled kernel is not used")

    monkeypatch.setattr(choose.arrays_numpy, "evaluate", refuse)
    rng = np.random.default_rng(n)
    far_out = 4.0 if dtype is np.float32 else 50.0  # the results stay finite
    scores = 1e3 + rng.normal(size=n) * np.where(rng.random(n) < 0.1, far_out, 1.0)
    # A row of weight 0 may have any score.
    scores = np.append(scores, 1e30).astype(dtype)
    labels, weights = np.arange(n + 1) % 3 == 0, np.append(rng.random(n), 0.0)
    options = {"surrogate": surrogates.exponential(0.7), "margin": 0.3, "weights": weights}
    rtol, atol = (1e-6, 1e-37) if dtype is np.float32 else (1e-12, 1e-290)
    expected = naive.pair_derivatives(scores.astype(float), labels, **options)
    for isa in native.isas():
        native.use_isa(isa)
        got = ep.pair_derivatives(scores, labels, **options)
        for k in range(3):
            np.testing.assert_allclose(got[k], expected[k], rtol, atol, err_msg=isa)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads_change_no_bit(dtype):
    rng = np.random.default_rng(8)
    scores, labels = rng.normal(size=200_000).astype(dtype), rng.random(200_000) < 0.1
    for name in NAMES:
        results = []
        try:
            for threads in (1, 3):
                ep.set_num_threads(threads)
                value, grad, hess = ep.pair_derivatives(scores, labels, surrogate=name)
                results.append((value, grad.tobytes(), hess.tobytes()))
        finally:
            ep.set_num_threads(None)
        assert results[0] == results[1]
