"""The promise of accuracy, for every plan: errors per class and per entry.

What `docs/performance.md` states under "Errors", with the numbers of `tolerances.py`:

- Each entry of a derivative, relative to the largest entry of its class. Where the pairs of a row
  pull in both directions and may cancel (ordered and survival pairs, products with the Hessian, the
  curvature of the sigmoid), relative to the largest sum of absolute values over the pairs.
- Each entry relative to itself, where all pairs of a row pull in one direction. The certified plans
  bound it for entries of at least a thousandth of the largest of their class only.

Other modules run the same cases for other backends. Oracle: the double sum.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from benchmarks.instruction_sets import instruction_sets
from everypair import naive
from everypair.kernel import choose

from .conftest import ArrayBackend
from .tolerances import CERTIFIED_ENTRY, NOTABLE, RELATIVE

SHAPES = {
    "normal": lambda rng, z, y: z + y,
    "offset": lambda rng, z, y: z + y + 1e4,
    "Cauchy": lambda rng, z, y: rng.standard_cauchy(z.size) + y,
    "cubed Cauchy": lambda rng, z, y: rng.standard_cauchy(z.size) ** 3 + y,
    "saturated sigmoid": lambda rng, z, y: 1 / (1 + np.exp(-10 * (z + 2 * y - 1))),
    "ties": lambda rng, z, y: np.round(8 * (z + y)) / 8,
    "separated": lambda rng, z, y: 0.05 * z + 1.1 * y,
    "thirty decades": lambda rng, z, y: (
        rng.choice([-1, 1], z.size) * 10 ** rng.uniform(-25, 5, z.size)
    ),
}


class Case(NamedTuple):
    """A batch, and the surrogate, which together decide the plan of each backend."""

    surrogate: str
    dtype: type
    shape: str
    n: int
    share: float = 0.1
    margin: float = 1.0
    weights: bool = False
    groups: bool = False
    pairs: str = "binary"


def _cases():
    """Yield cases on both sides of the limits between the plans of the compiled kernel."""
    single, double = np.float32, np.float64
    hinge, huber = "squared_hinge", "huber_hinge"
    for shape in SHAPES:
        yield Case(hinge, single, shape, 700)  # pairs inside buckets, one by one
        yield Case(hinge, single, shape, 7_000, 0.02)  # certified buckets
        yield Case(hinge, single, shape, 33_000, 0.002)  # the same, split where rows are dense
        yield Case(hinge, double, shape, 2_000)
    yield Case(hinge, single, "normal", 5_000, 0.05, margin=0.0)
    yield Case(huber, single, "normal", 33_000, 0.002)
    for name in (hinge, huber):
        yield Case(name, single, "Cauchy", 20_000, 0.005, weights=True)
        yield Case(name, single, "normal", 20_000, 0.01, groups=True)
    for dtype in (single, double):
        for name in (huber, "linear_hinge", "square", "logistic", "sigmoid", "exponential"):
            yield Case(name, dtype, "normal", 2_000)
            yield Case(name, dtype, "saturated sigmoid", 7_000, 0.02)
        yield Case("logistic", dtype, "Cauchy", 2_000)
        for name in (hinge, "linear_hinge", "logistic"):
            yield Case(name, dtype, "normal", 2_000, pairs="ordered")
            yield Case(name, dtype, "normal", 500, pairs="survival")


def _name(case):
    words = [case.surrogate, case.dtype.__name__, case.shape, f"{case.n} rows"]
    options = {"margin 0": not case.margin, "weights": case.weights, "groups": case.groups}
    return ", ".join([*words, *(name for name, is_set in options.items() if is_set), case.pairs])


CASES = {_name(case): case for case in _cases()}


@cache
def batch_of(case):
    """Return scores, labels, a vector and options."""
    rng = np.random.default_rng([case.n, list(SHAPES).index(case.shape)])
    labels = rng.random(case.n) < case.share
    labels[:2] = True, False
    scores = SHAPES[case.shape](rng, rng.normal(size=case.n), labels)
    if case.dtype is np.float64:  # on a grid, where the double sum has exact differences
        scores = np.round(scores * 2.0**30) / 2.0**30
    scores = scores.astype(case.dtype)
    knobs = {"surrogate": case.surrogate, "margin": case.margin, "pairs": case.pairs}
    if case.weights:
        knobs["weights"] = rng.uniform(0.5, 2.0, case.n)
    if case.groups:
        knobs["groups"] = rng.integers(0, 3, case.n)
    if case.pairs == "ordered":
        labels = rng.integers(0, 3, case.n) + labels
    elif case.pairs == "survival":
        labels = np.column_stack([rng.exponential(size=case.n), rng.random(case.n) < 0.7])
    return scores, labels, np.cos(1.7 * np.arange(case.n)), knobs


class DoubleSum:
    """The oracle, with the methods of a backend."""

    loss_and_grad = staticmethod(naive.pair_loss_and_grad)
    derivatives = staticmethod(naive.pair_derivatives)
    hvp = staticmethod(naive.pair_hvp)


def results_of(backend, scores, labels, vector, knobs):
    """Return the loss and, by name, functions that compute a derivative.

    The gradient is asked for alone, because plans differ in which derivatives they compute.
    """
    loss, grad = backend.loss_and_grad(scores, labels, **knobs)
    return loss, {
        "grad": lambda: grad,
        "hess": lambda: backend.derivatives(scores, labels, **knobs)[2],
        "hvp": lambda: backend.hvp(scores, labels, vector, **knobs),
    }


@cache
def expected_of(case):
    scores, *others = batch_of(case)
    loss, derivatives = results_of(DoubleSum, scores.astype(np.float64), *others)
    return loss, {kind: cache(derivative) for kind, derivative in derivatives.items()}


def is_certified(backend, case, kind):
    """Return whether a plan without a sort may compute the entries, with a bound for each class."""
    compiled = getattr(backend, "name", "") in ("native", "torch", "torch cuda", "torch triton")
    vanishing = case.surrogate in ("squared_hinge", "huber_hinge")
    return compiled and case.dtype is np.float32 and kind == "grad" and vanishing


def has_one_sign(case, kind):
    """Return whether all pairs of a row add to its entry with one sign, so that none cancel."""
    if kind == "hess":
        return case.surrogate != "sigmoid"
    return kind == "grad" and case.pairs == "binary" and case.surrogate != "square"


def assert_promised(backend, case, kinds=("grad", "hess", "hvp")):
    """Check the loss and these derivatives; of many rows the gradient only."""
    tolerance = RELATIVE[np.dtype(case.dtype)]
    smallest = np.finfo(case.dtype).tiny  # numbers below it have fewer digits
    batch = batch_of(case)
    (loss, results), (true_loss, expected) = results_of(backend, *batch), expected_of(case)
    assert abs(loss - true_loss) <= tolerance * true_loss
    labels = batch[1]
    of_classes = (labels == 1, labels != 1) if case.pairs == "binary" else (slice(None),)
    for kind in kinds if case.n <= 2_000 else ("grad",):
        result, true = results[kind]().astype(np.float64), expected[kind]()
        for of_class in of_classes:
            size, error = np.abs(true[of_class]), np.abs(result - true)[of_class]
            largest = size.max()
            if case.surrogate == "sigmoid":  # its curvature is relative to the slope
                largest = max(largest, np.abs(expected["grad"]()[of_class]).max())
            assert_bounded(kind, "of the largest", error, tolerance * largest + smallest)
            if is_certified(backend, case, kind):
                size = np.where(size >= NOTABLE * largest, size, np.inf)
                assert_bounded(kind, "of the entry", error, CERTIFIED_ENTRY * size + smallest)
            elif has_one_sign(case, kind):
                # 1e8: entries of so few digits that a factor of them may be denormal
                assert_bounded(kind, "of the entry", error, tolerance * size + 1e8 * smallest)


def assert_bounded(kind, measure, error, allowed):
    worst = (error / allowed).max()
    assert worst <= 1.0, f"{kind}: {worst:.3g} times the allowed error {measure}"


@pytest.fixture(scope="module", params=["numpy", *instruction_sets()])
def backend(request):
    if request.param == "numpy":
        yield ArrayBackend("numpy")
    else:
        choose.native.kernel.use_isa(request.param)
        yield ArrayBackend("native")
        choose.native.kernel.use_isa(instruction_sets()[-1])


@pytest.mark.parametrize("name", CASES)
def test_every_entry_is_as_accurate_as_promised(backend, name):
    assert_promised(backend, CASES[name])
