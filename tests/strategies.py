"""Small batches on dyadic grids, and the surrogates that every law is stated for.

On such grids every shortfall is exact in float64, whichever way it is computed. A pair that stands
on a knot, where the slope of some surrogates jumps, then stands there for every backend.
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
SURROGATES = (*map(surrogates.get, surrogates.names()), JUMP, BUMPY)

# Scales and offsets that leave a grid of eighths exact in float32.
_GRIDS = ((1.0, 0.0), (1.0, 1024.0), (1.0, -(2.0**20)), (2.0**-20, 0.0), (2.0**20, 0.0))
_CODINGS = (
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


@st.composite
def batches(draw, *, weights=None, groups=None, min_size=2, max_size=60):
    """Draw a batch; `weights` and `groups` are drawn as well, unless True or False decides."""
    n = draw(st.integers(min_size, max_size))
    spread = draw(st.sampled_from((1, 6, 40)))
    ticks = draw(st.lists(st.integers(-spread, spread), min_size=n, max_size=n))
    scale, offset = draw(st.sampled_from(_GRIDS))
    dtype = draw(st.sampled_from((np.float32, np.float64)))
    positive = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    knobs = {
        "margin": draw(st.sampled_from((0.0, 0.25, 1.0, 2.5)))
        * draw(st.sampled_from((1.0, scale))),
        "weights": None,
        "groups": None,
        "reduction": draw(st.sampled_from(("mean", "sum"))),
    }
    if draw(st.booleans()) if weights is None else weights:
        halves = draw(st.lists(st.integers(0, 6), min_size=n, max_size=n))
        knobs["weights"] = np.array(halves) / 2.0
    if draw(st.booleans()) if groups is None else groups:
        knobs["groups"] = np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    return Batch(
        scores=(np.array(ticks) / 8.0 * scale + offset).astype(dtype),
        labels=draw(st.sampled_from(_CODINGS))(positive),
        vector=np.array(draw(st.lists(st.integers(-8, 8), min_size=n, max_size=n))) / 4.0,
        knobs=knobs,
    )


def all_surrogates():
    return st.sampled_from(SURROGATES)


@dataclass
class Answer:
    """All that can be asked about one batch."""

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
