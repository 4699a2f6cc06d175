"""Small batches on dyadic grids, and the surrogates that every law is tested with.

On such grids every shortfall is exact in float64 whichever way it is computed, so all backends
agree on which pairs are on a knot, where the slope of some surrogates jumps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from everypair import naive, surrogates
from everypair.surrogates import Surrogate, Term

JUMP = Surrogate("jump", (Term(1.0, 0.5, 0.25, knot=0.5),))
BUMPY = Surrogate(
    "bumpy", (Term(0.5, 0.0, 0.5), Term(0.0, 1.0, 0.0, knot=-0.5), Term(0.0, 0.0, -0.25, knot=1.0))
)
BUILT_IN = tuple(map(surrogates.get, surrogates.names()))
POLYNOMIALS = tuple(s for s in BUILT_IN if s.is_polynomial)
SURROGATES = (*POLYNOMIALS, JUMP, BUMPY)
# The curvature of this sum is positive; that of the sigmoid has both signs, so sums of it cancel.
MIXED = Surrogate(
    "mixed", (*surrogates.sigmoid().terms, *surrogates.logistic(0.5).terms, *BUMPY.terms)
)
# With a temperature of 1 the exponential of most batches would overflow.
SMOOTH = (
    surrogates.logistic(),
    surrogates.squared_softplus(),
    surrogates.exponential(temperature=2.0**18),
    MIXED,
)

# Scales and offsets that leave a grid of eighths exact in float32.
_GRIDS = ((1.0, 0.0), (1.0, 1024.0), (1.0, -(2.0**20)), (2.0**-20, 0.0), (2.0**20, 0.0))
CODINGS = (
    lambda positive: positive,
    lambda positive: positive.astype(np.int64),
    lambda positive: np.where(positive, 1, -1).astype(np.int8),
    lambda positive: positive.astype(np.float32),
)


@dataclass
class Batch:
    scores: np.ndarray
    labels: np.ndarray
    vector: np.ndarray
    knobs: dict = field(default_factory=dict)

    @property
    def dtype(self):
        return self.scores.dtype

    @property
    def positive(self):
        return self.labels == 1

    def take(self, rows):
        per_row = {k: None if self.knobs[k] is None else self.knobs[k][rows] for k in _PER_ROW}
        return Batch(
            self.scores[rows], self.labels[rows], self.vector[rows], {**self.knobs, **per_row}
        )

    def but(self, **knobs):
        return replace(self, knobs={**self.knobs, **knobs})


_PER_ROW = ("weights", "groups")


def batches(*, weights=None, groups=None, min_size=2, max_size=60):
    """Draw a batch. `weights` and `groups` are present if True, absent if False, else drawn.

    The batch is decoded from one byte string. Lists of numbers would take most of the time of a
    test, and hypothesis would derive most examples from a few by repeating their parts.
    """

    def decoded(drawn):
        return _decoded(_Bytes(drawn), weights, groups, min_size, max_size)

    size = 16 + 5 * max_size
    return st.binary(min_size=size, max_size=size).map(decoded)


class _Bytes:
    """Small integers and choices, read from a byte string."""

    def __init__(self, drawn):
        self.rest = np.frombuffer(drawn, np.uint8).astype(np.int64)

    def integers(self, n, low, high):
        taken, self.rest = self.rest[:n], self.rest[n:]
        return low + taken % (high - low + 1)

    def choice(self, options):
        return options[self.integers(1, 0, len(options) - 1).item()]


def _decoded(drawn, weights, groups, min_size, max_size):
    n = drawn.choice(range(min_size, max_size + 1))
    spread = drawn.choice((1, 6, 40))
    scale, offset = drawn.choice(_GRIDS)
    dtype = drawn.choice((np.float32, np.float64))
    margin = drawn.choice((0.0, 0.25, 1.0, 2.5)) * drawn.choice((1.0, scale))
    reduction = drawn.choice(("mean", "sum"))
    coding = drawn.choice(CODINGS)
    has_weights, has_groups = (
        drawn.choice((False, True)) if given is None else given for given in (weights, groups)
    )
    ticks = drawn.integers(n, -spread, spread)
    # One row in two, five or sixteen is positive. Even the simplest example has a pair.
    every = drawn.choice((2, 2, 5, 16))
    positive = (drawn.integers(n, 0, every - 1) + np.arange(n)) % every == 0
    halves, codes = drawn.integers(n, 0, 6), drawn.integers(n, 0, 3)
    return Batch(
        scores=(ticks / 8.0 * scale + offset).astype(dtype),
        labels=coding(positive),
        vector=drawn.integers(n, -8, 8) / 4.0,
        knobs={
            "margin": margin,
            "weights": halves / 2.0 if has_weights else None,
            "groups": codes if has_groups else None,
            "reduction": reduction,
        },
    )


def targets(*, kinds=("ordered", "survival", "uno"), **options):
    """Draw a batch with ordered targets or survival times, from two values to all distinct.

    The kind "uno" has weights against censoring, and "binary" is a batch of `batches`.
    """
    seeds = st.integers(0, 2**32 - 1)
    return st.builds(_with_targets, batches(**options), st.sampled_from(kinds), seeds)


def _with_targets(batch, kind, seed):
    if kind == "binary":
        return batch
    rng = np.random.default_rng(seed)
    n = batch.scores.size
    batch.labels = rng.integers(0, rng.choice([2, 3, 5, 2 * n]), n) / 2.0
    batch.knobs["pairs"] = "ordered" if kind == "ordered" else "survival"
    if kind != "ordered":
        batch.labels = np.column_stack([batch.labels, rng.random(n) < rng.choice([0.3, 0.9])])
    if kind == "uno":
        batch.knobs["censoring"] = "uno"
    return batch


def all_surrogates():
    return st.sampled_from((*SURROGATES, *SMOOTH))


@dataclass
class Answer:
    """All results for one batch."""

    value: float
    grad: np.ndarray
    hess: np.ndarray
    hvp: np.ndarray


def double_sum(batch, surrogate):
    scores = batch.scores.astype(np.float64)
    value, grad, hess = naive.pair_derivatives(
        scores, batch.labels, surrogate=surrogate, **batch.knobs
    )
    hvp = naive.pair_hvp(scores, batch.labels, batch.vector, surrogate=surrogate, **batch.knobs)
    return Answer(value, grad, hess, hvp)


def computed(backend, batch, surrogate):
    arguments = batch.scores, batch.labels
    value, grad, hess = backend.derivatives(*arguments, surrogate=surrogate, **batch.knobs)
    hvp = backend.hvp(*arguments, batch.vector, surrogate=surrogate, **batch.knobs)
    return Answer(value, grad, hess, hvp)
