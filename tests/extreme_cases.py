"""Batches that are hard to compute, in one table for all backends.

The expected results are those of exact arithmetic (`tests.fuzz.oracle`). To add a case, yield its
name and its batch in `_small_cases`; `test_extremes` and the tests of other backends run it.
"""

from __future__ import annotations

from functools import cache, partial

import numpy as np

from everypair import naive
from everypair.surrogates import HUBER_HINGE, LINEAR_HINGE, SQUARE, SQUARED_HINGE

from .fuzz.batches import Batch, bending, polynomial
from .fuzz.oracle import exact
from .strategies import BUMPY, SURROGATES
from .tolerances import RELATIVE, assert_close

CAPPED = polynomial("capped", (0, 1, 0, 0), (2, -1, 0, 2))
HAT = bending("hat", (1.0, 0.0), (-2.0, 1.0), (1.0, 2.0))
TWO_SQUARES = bending("two squares", (1.0, 0.0), (1.0, 0.5))
STEPS = polynomial("steps", (1, 0, 0, 0), (-2, 0, 0, 0.1))
# The terms with a knot cancel the one without beyond all knots.
AGAINST_A_WHOLE = (
    polynomial("square, then line", (3, 1, 1, None), (-1, 0.1, -1, -0.5)),
    polynomial("square, then constant", (0, 0, 1, None), (0.25, 0, -1, 0.3)),
    polynomial("line, then constant", (0, 1, 0, None), (0.5, -1, 0, 0.5)),
    polynomial("two knots", (1, 0, 1, None), (0, 0, -3, -0.5), (0, 1, 2, 1.0)),
)
CANCELLING = polynomial("cancelling", (0, 0, 1, 0.1), (-0.5, 3, -1, None), (0, 1, 0, 7))
FLAT = polynomial("flat", (0.1, -1, 0, None), (0.5, 1, -1, 0.7), (3.0, 0, 1, 1.0))
LABELS = np.arange(24) % 3 == 0


def batch(
    scores, labels, dtype=np.float64, *, vector=None, surrogate=SQUARED_HINGE, margin=1.0,
    weights=None, groups=None, reduction="mean",
):  # fmt: skip
    if vector is None:
        vector = np.random.default_rng(5).normal(size=len(scores))
    return Batch(
        scores=np.asarray(scores).astype(dtype), labels=np.asarray(labels),
        vector=np.asarray(vector).astype(dtype), surrogate=surrogate, margin=margin,
        weights=None if weights is None else np.asarray(weights, np.float64),
        groups=None if groups is None else np.asarray(groups), reduction=reduction, kind="extreme",
    )  # fmt: skip


def random_scores(**outliers):
    """Return 24 scores, of which ``r0=2.0`` replaces that of row 0."""
    scores = np.random.default_rng(3).normal(size=LABELS.size).round(3)
    for row, score in outliers.items():
        scores[int(row[1:])] = score
    return scores


def random_weights(*, pos=1.0, neg=1.0):
    return np.random.default_rng(4).uniform(0.5, 2.0, LABELS.size) * np.where(LABELS, pos, neg)


# Row 0 is positive, rows 1 and 2 are negative.
OUTLIERS = {
    "a low positive": lambda size: {"r0": -size},
    "two low positives": lambda size: {"r0": -size, "r3": -1.7 * size},
    "a high negative": lambda size: {"r1": size},
    "both": lambda size: {"r0": -size, "r1": 1.3 * size, "r4": 2.9 * size},
    "a high positive and a low negative": lambda size: {"r0": size, "r2": -size},
}


def _outliers():
    for where, rows in OUTLIERS.items():
        for size in (1e8, 1e14, 1e20):
            for surrogate in (HUBER_HINGE, CAPPED, SQUARED_HINGE):
                scores = random_scores(**rows(size))
                yield f"{where} at {size:.0e}", batch(scores, LABELS, surrogate=surrogate)
    for size in (1e4, 1e8, 1e11, 1e14):
        for row in (0, 1):
            for outlier in (size, -size):
                for surrogate in (CANCELLING, FLAT):
                    scores = random_scores(**{f"r{row}": outlier})
                    one = batch(scores, LABELS, surrogate=surrogate, margin=0.7)
                    yield f"row {row} at {outlier:.0e}", one
    for size in (-1e6, -1e12, 1e12):
        for surrogate in (HUBER_HINGE, CAPPED, SQUARED_HINGE):
            scores = random_scores(r0=size)
            single = batch(scores, LABELS, np.float32, surrogate=surrogate)
            yield f"a positive at {size:.0e}", single
    for size in (1e6, 1e15, 1e22):
        for margin in (1.0, 0.1, 0.7):
            few = [-size, 0.1, 0.5, 0.2, -0.3], [1, 1, 1, 0, 0]
            yield f"five rows, one at {size:.0e}", batch(*few, surrogate=HAT, margin=margin)
    for size in (1.0, 1e15, 1e37, -1e37):
        scores = [-size, 0.1, 0.5, 0.2, -0.3, 0.4, 0.6]
        for surrogate in AGAINST_A_WHOLE:
            for margin in (1.0, 0.1, 1e17, 1e100):
                for first in (0, 1):
                    seven = scores, [first, 1, 1, 0, 0, 0, 1]
                    name = f"seven rows, one of class {first} at {-size:.0e}"
                    yield name, batch(*seven, surrogate=surrogate, margin=margin)
    rng = np.random.default_rng(9)
    scores = rng.normal(size=200)
    scores[0] = 1e155
    yield "a square that overflows", batch(scores, np.arange(200) < 10, surrogate=TWO_SQUARES)
    for rows in (3, 17, 101):
        scores = rng.choice([-1e150, 1e150, 0.0], rows)
        for surrogate in (SQUARE, SQUARED_HINGE, LINEAR_HINGE):
            large = batch(scores, np.arange(rows) % 2, surrogate=surrogate, margin=0.0)
            yield f"{rows} rows of 1e150", large
    growing = polynomial("growing", (0.1, 3, 0.5, None), (0, 0.1, 1, -1), (0, 0, 0.5, 0))
    rows = [6e37, -0.2, 1.7, -0.8], [1, 1, 1, 0]
    alone = batch(*rows, groups=[0, 1, 1, 1], surrogate=growing)
    yield "a distant row of a group without pairs", alone


def _margins():
    for margin in (1e6, 1e12):
        for surrogate in (HUBER_HINGE, SQUARED_HINGE, LINEAR_HINGE, SQUARE):
            yield "", batch(random_scores(), LABELS, surrogate=surrogate, margin=margin)
    # At these margins the terms share a knot, because margin - knot is rounded.
    for margin in (1e17, 1e100, 1e150):
        for surrogate in (HUBER_HINGE, CAPPED, HAT):
            yield "", batch(random_scores(), LABELS, surrogate=surrogate, margin=margin)
    late = bending("late Huber", (0.5, 0.1), (-0.5, 1.1))
    yield "a rounded knot", batch([0.0, 0.5], [1, 0], surrogate=late, margin=1e12)


def _weights():
    for pos, neg in (
        (1e160, 1e160), (1e-170, 1e-170), (1e-300, 1e300), (1e300, 1e300), (1e60, 1e60),
        (1e19, 1e19), (1e-20, 1e-20),
    ):  # fmt: skip
        name, weights = f"weights of {pos:.0e} and {neg:.0e}", random_weights(pos=pos, neg=neg)
        # Rows with equal scores stand between the same two knots and share running sums.
        for surrogate in (LINEAR_HINGE, HUBER_HINGE, SQUARE, BUMPY):
            tied = random_scores().round(1)
            yield name, batch(tied, LABELS, surrogate=surrogate, weights=weights)
        if 1e-30 < pos * neg < 1e30:
            yield name, batch(random_scores(), LABELS, weights=weights, reduction="sum")
    for pos, neg in ((1e19, 1e18), (1e-20, 1e-18), (1e30, 1e-30)):
        knobs = {"weights": random_weights(pos=pos, neg=neg), "surrogate": HUBER_HINGE}
        name = f"weights of {pos:.0e} and {neg:.0e}"
        yield name, batch(random_scores(), LABELS, np.float32, **knobs)
    for name, scores, labels, weights in (
        ("a positive far away", [-1.0, 0.0, 1e155], [1, 0, 1], [1, 1, 0]),
        ("a negative far away", [-1.0, 0.0, 1e155], [1, 0, 0], [1, 1, 0]),
        ("a positive far below", [-1.0, 0.0, -1e155], [1, 0, 1], [1, 1, 0]),
        ("out of range", [-1.0, 0.0, 1.7e308, -1.7e308], [1, 0, 0, 1], [1, 2, 0, 0]),
    ):
        for surrogate in SURROGATES:
            weightless = batch(scores, labels, weights=weights, surrogate=surrogate)
            yield f"weight 0: {name}", weightless
    far = [-1.0, 0.0, 3e38, -3e38], [1, 0, 0, 1]
    yield "weight 0: out of range", batch(*far, np.float32, weights=[1, 1, 0, 0])
    for surrogate in (SQUARE, SQUARED_HINGE):
        light = batch(
            [-1e22, 0.5, 0.25, 0.75], [1, 1, 0, 0], surrogate=surrogate, weights=[1e-60, 1, 1, 2]
        )
        yield "a distant positive of little weight", light
    powers = np.repeat([-600, 100, 300], 4) + np.tile([0, 200, 1, 199], 3)
    rows = np.tile([0.3, 0.1, 0.2, 0.5], 3), np.tile([1, 0, 1, 0], 3)
    by_group = {"weights": np.ldexp(1.0, powers), "groups": np.repeat([0, 1, 2], 4)}
    yield "weights of groups over 300 decades", batch(*rows, **by_group)
    ends = [-1e250, -1e250, 1e250, 1e250], [1, 1, 0, 0]
    for weights in ([5e-324] * 4, [1.0, 1.0, 5e-324, 5e-324]):
        knobs = {"weights": weights, "surrogate": LINEAR_HINGE, "reduction": "sum"}
        yield f"denormal weights, the first {weights[0]:.0e}", batch(*ends, **knobs)
    yield "positives without weight", batch(random_scores(), LABELS, weights=random_weights(pos=0))
    rng = np.random.default_rng(7)
    tied = rng.integers(-12, 13, 160) / 4
    yield "weights of 0.1", batch(tied, rng.random(160) < 0.95, weights=np.full(160, 0.1))
    rng = np.random.default_rng(25)
    weights = 10.0 ** rng.uniform(-6, 6, 150) * (rng.random(150) < 0.8)
    groups = rng.integers(0, 40, 150)
    scores = rng.normal(size=150) + 1000.0 * np.sin(groups)
    for surrogate in SURROGATES:
        knobs = {"weights": weights, "groups": groups, "surrogate": surrogate}
        yield "many groups and weights", batch(scores, rng.random(150) < 0.4, **knobs)


def _vectors():
    offset = random_scores() + 2.0**40
    for surrogate in SURROGATES:
        for groups in (None, LABELS.cumsum() // 3):
            knobs = {"vector": offset, "surrogate": surrogate, "groups": groups}
            name = "a vector far from 0" + (", groups" if groups is not None else "")
            yield name, batch(random_scores(), LABELS, **knobs)


def _groups():
    tiny = 2.0**-20
    for groups in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0]):
        scores = [0.0, 1e9, -5.0, 0.0, tiny, 2 * tiny]
        for dtype in (np.float32, np.float64):
            knobs = {"groups": groups, "margin": 0.0, "reduction": "sum"}
            wide = batch(scores, [1, 1, 0, 1, 1, 0], dtype, **knobs)
            yield f"a wide group {groups[0]} and a narrow one", wide
    for groups in ([0, 0, 1, 1], [1, 1, 0, 0]):
        for dtype in (np.float32, np.float64):
            knobs = {"groups": groups, "weights": [1e12, 1e12, 1e-6, 3e-6], "reduction": "sum"}
            heavy = batch([5.0, 0.0, 0.0, 0.0], [1, 0, 1, 0], dtype, **knobs)
            yield f"a heavy group {groups[0]} and a light one", heavy
    # Adding 1 to 2^60 is lost to rounding; the shortfall is 1 all the same.
    apart = {"groups": [0, 1, 1], "surrogate": LINEAR_HINGE}
    yield "a margin at large scores", batch([0.0, 2.0**60, 2.0**60], [1, 1, 0], **apart)


def _knots():
    for dtype in (np.float32, np.float64):
        for name, scores, labels, margin, surrogate in (
            ("a rounded sum", [-0.3, 0.0, -1.0], [1, 1, 0], 1.0, LINEAR_HINGE),
            ("no margin", [-1.0, 1e-17, 2e-17], [1, 1, 0], 0.0, LINEAR_HINGE),
            ("rounded to a positive", [0.1, 0.2, 0.3, 0.3, 0.6], [0, 0, 1, 1, 1], 0.1, CAPPED),
            ("an offset", [-1e17, 0.0, 1.0, 2.0, 3.0], [1, 0, 1, 0, 1], 1.0, LINEAR_HINGE),
            ("two positives", [0.3, 1.0, *[0.0] * 38], [1, 1, *[0] * 38], 1.0, CAPPED),
        ):
            on_knot = batch(scores, labels, dtype, margin=margin, surrogate=surrogate)
            yield f"on the knot: {name}", on_knot
    rng = np.random.default_rng(9)
    scores = rng.choice([-1.0, 1.0], 60) * 10.0 ** rng.uniform(-300, 308, 60)
    steps = batch(scores, np.arange(60) % 2, surrogate=STEPS, reduction="sum")
    yield "steps over scores of any size", steps


def _denormal():
    ticks = np.random.default_rng(22).integers(-50, 50, 100)
    for dtype in (np.float32, np.float64):
        for surrogate in (SQUARE, SQUARED_HINGE, LINEAR_HINGE, HUBER_HINGE):
            for margin in (0.0, 1.0):
                scores = ticks * np.finfo(dtype).smallest_subnormal
                knobs = {"surrogate": surrogate, "margin": margin, "reduction": "sum"}
                yield "denormal scores", batch(scores, np.arange(100) % 3 == 0, dtype, **knobs)


def _float32():
    """Yield batches whose intermediate results are beyond the range of float32."""
    rng, few = np.random.default_rng(10), np.arange(190) < 10
    steep = bending("steep", (1e37, 0.0), (1e37, 1e-11))
    scores = 1e-10 * rng.normal(size=190)
    yield "coefficients of 1e37", batch(scores, few, np.float32, surrogate=steep, margin=0.0)
    scores = np.where(few, -3e38, rng.uniform(-3e38, 3e38, 190))
    shallow = bending("shallow", (1e-10, 0.0), (1e-10, 0.5))
    yield "distances beyond float32", batch(scores, few, np.float32, surrogate=shallow)
    for gap in (1e-3, 1e-4):
        scores = np.where(few, 0.0, 2 - gap * rng.uniform(1, 2, 190))
        back = batch(scores, few, np.float32, surrogate=HAT, margin=0.0)
        yield f"a slope that returns to zero within {gap:.0e}", back


def _small_cases():
    for cases in (_outliers, _margins, _weights, _vectors, _groups, _knots, _denormal, _float32):
        yield from cases()


def _name(words, small):
    knobs = [
        small.surrogate.name,
        f"margin {small.margin:.0e}",
        small.reduction,
        small.scores.dtype,
    ]
    return ", ".join(map(str, ([words] if words else []) + knobs))


# (rng, normal deviates, labels) -> scores
SHAPES = {
    "normal": lambda rng, z, y: z + y,
    "all equal": lambda rng, z, y: np.full(z.size, 0.1),
    "two clusters": lambda rng, z, y: z + 1e6 * (rng.random(z.size) < 0.5),
    "two clusters, positives high": lambda rng, z, y: z + 1e6 * (y | (rng.random(z.size) < 0.3)),
    "offset": lambda rng, z, y: z + y + 1e6,
    "negative offset": lambda rng, z, y: z + y - 2.0**20,
    "large offset": lambda rng, z, y: np.round(z + y, 3) - 2.0**42,
    "sorted": lambda rng, z, y: np.sort(z),
    "reversed": lambda rng, z, y: np.sort(z)[::-1],
    "heavy duplicates": lambda rng, z, y: rng.integers(0, 5, z.size) / 4,
    "one heavy value": lambda rng, z, y: np.where(rng.random(z.size) < 0.9, 0.25, z),
    "saturated sigmoid": lambda rng, z, y: 1 / (1 + np.exp(-30 * z)),
    "Cauchy": lambda rng, z, y: rng.standard_cauchy(z.size) + y,
    "ties on knots": lambda rng, z, y: np.round(8 * (z + y)) / 8,
    "separated": lambda rng, z, y: rng.random(z.size) + 3.0 * y,
    "separated the wrong way": lambda rng, z, y: rng.random(z.size) - 3.0 * y,
    "tiny differences": lambda rng, z, y: 0.5 + 2.0**-20 * rng.integers(-8, 9, z.size),
    "twelve decades": lambda rng, z, y: 10.0 ** rng.uniform(-6, 6, z.size),
    "thirty decades": lambda rng, z, y: (
        rng.choice([-1, 1], z.size) * 10 ** rng.uniform(-15, 15, z.size)
    ),
    "one outlier": lambda rng, z, y: np.where(np.arange(z.size) == 7, -1e6, z),
}


def shaped(shape, n, share, dtype, **knobs):
    rng = np.random.default_rng(20)
    labels = rng.random(n) < share
    return batch(SHAPES[shape](rng, rng.normal(size=n), labels), labels, dtype, **knobs)


def _shaped_cases():
    for shape in SHAPES:
        for dtype in (np.float32, np.float64):
            for surrogate in SURROGATES:
                # Few rows of one class let the compiled kernel take another plan for several terms.
                for share in (0.2, 0.03, 0.97) if len(surrogate.terms) > 1 else (0.2,):
                    name = f"{shape}, {share:.0%} positive, {surrogate.name}, {dtype.__name__}"
                    yield name, partial(shaped, shape, 600, share, dtype, surrogate=surrogate)
        for margin in (0.0, 0.25):
            name = f"{shape}, margin {margin}"
            yield name, partial(shaped, shape, 2000, 0.5, np.float32, margin=margin)


# Names with functions that return the batch. SMALL ones have at most 200 rows.
SMALL = {_name(words, small): partial(lambda x: x, small) for words, small in _small_cases()}
SHAPED = dict(_shaped_cases())
CASES = {**SMALL, **SHAPED}


@cache
def _case(name):
    """Return the batch and its exact results."""
    made = CASES[name]()
    return made, exact(made)


def assert_exact(backend, name):
    """Compare all results of a backend with exact arithmetic."""
    assert_answers(backend, *_case(name))


def assert_answers(backend, made, expected):
    """Compare all results for a batch.

    Curvatures of several terms may cancel far from their knots, so their errors may be as large as
    the curvatures next to the knots.
    """
    data, dtype, options = (made.scores, made.labels), made.scores.dtype, made.options
    value, grad, hess = backend.derivatives(*data, **options)
    loss, same_grad = backend.loss_and_grad(*data, **options)
    hvp = backend.hvp(*data, made.vector, **options)
    scale = 0.0
    if len(made.surrogate.terms) > 1:
        fewer = min(made.positive.sum(), (~made.positive).sum())
        scale = 2.0 / fewer if made.weights is None else np.abs(expected.grad).max()
    spread = made.vector.max() - made.vector.min()
    for number in (value, loss):
        if not (np.isinf(number) and expected.value > float(np.finfo(dtype).max)):
            assert_close(number, expected.value, dtype)
    for array in (grad, same_grad):
        assert_close(array, expected.grad, dtype)
    assert_close(hess, expected.hess, dtype, scale=scale)
    assert_close(hvp, expected.hvp, dtype, scale=scale * spread)
    if hasattr(backend, "auc") and expected.auc is not None:
        area = backend.auc(*data, weights=made.weights, groups=made.groups)
        assert abs(area - expected.auc) <= 1e-15


# Powers of two of a vector and of the weights: entries near the limits of float32 or of float64
# whose products are not.
POWERS = {np.float32: ((-120, 60), (100, -60), (-100, 73)), np.float64: ((-930, 480), (1000, -498))}


def assert_exact_product(backend, dtype, pairs, surrogate, *, of_gradient=False):
    """Compare products of the Hessian and a vector of any size with that of a vector near 1.

    With `of_gradient`, the gradient fits the type too, which a backend differentiates.
    """
    rng = np.random.default_rng(6)
    scores, vector = (rng.normal(size=LABELS.size).astype(dtype) for _ in range(2))
    labels = LABELS if pairs == "binary" else 1.0 + np.arange(LABELS.size) % 5
    weights, knobs = random_weights(), {"pairs": pairs, "surrogate": surrogate, "reduction": "sum"}
    expected = naive.pair_hvp(scores.astype(float), labels, vector, weights=weights, **knobs)
    for of_vector, of_weights in POWERS[dtype][: 2 if of_gradient else None]:
        product = backend.hvp(
            scores, np.asarray(labels), np.ldexp(vector, of_vector),
            weights=np.ldexp(weights, of_weights), **knobs,
        )  # fmt: skip
        assert_close(product, np.ldexp(expected, of_vector + 2 * of_weights), dtype)


def assert_exact_beside_outliers(backend, dtype, size):
    """Compare each entry of the gradient of the square, beside a distant score of its own class."""
    for row in (0, 1):  # a positive and a negative
        made = batch(random_scores(**{f"r{row}": size}), LABELS, dtype, surrogate=SQUARE)
        others = np.flatnonzero(LABELS[row] == LABELS)[1:]
        grad = backend.loss_and_grad(made.scores, LABELS, surrogate=SQUARE)[1]
        expected = exact(made).grad[others]
        np.testing.assert_allclose(grad[others], expected, rtol=RELATIVE[np.dtype(dtype)])


def assert_exact_groups(backend, dtype, pairs, surrogate, size):
    """Compare groups of weights from 1 / `size` to `size`, each relative to its largest entry."""
    groups = np.arange(LABELS.size) % 4
    labels = np.arange(LABELS.size) // 4 % (2 if pairs == "binary" else 3)
    labels = labels + (0 if pairs == "binary" else 1)
    scores = random_scores().astype(dtype)
    weights = random_weights() * size ** (groups / 1.5 - 1.0)
    knobs = {"weights": weights, "groups": groups, "surrogate": surrogate, "pairs": pairs}
    expected = naive.pair_loss_and_grad(scores.astype(float), labels, **knobs)
    value, grad = backend.loss_and_grad(scores, labels, **knobs)
    assert_close(value, expected[0], dtype)
    for group in range(4):
        rows = groups == group
        assert_close(grad[rows], expected[1][rows], dtype)
