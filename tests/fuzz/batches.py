"""Random batches: scores, weights, groups, margins and surrogates that are hard to compute.

A batch depends on its seed and its number only, so any batch can be drawn again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from everypair import surrogates
from everypair.surrogates import Surrogate, Term

from ..strategies import CODINGS


@dataclass
class Batch:
    scores: np.ndarray
    labels: np.ndarray
    vector: np.ndarray
    surrogate: Surrogate
    margin: float
    weights: np.ndarray | None
    groups: np.ndarray | None
    reduction: str
    kind: str  # names of the distributions that it was drawn from
    pairs: str = "binary"  # "ordered": labels are grades; "survival": times, -time if censored

    @property
    def positive(self):
        return self.labels == 1

    def are_pairs(self, winners, losers):
        """Return whether each of these rows is to score higher than each of the others."""
        i, j = winners[:, None], losers
        if self.pairs == "binary":
            found = self.positive[i] & ~self.positive[j]
        elif self.pairs == "ordered":
            found = self.labels[i] > self.labels[j]
        else:
            time, event = np.abs(self.labels), self.labels > 0
            found = event[i] & ((time[i] < time[j]) | ((time[i] == time[j]) & ~event[j]))
        return found if self.groups is None else found & (self.groups[i] == self.groups[j])

    @property
    def options(self):
        return {
            "surrogate": self.surrogate,
            "margin": self.margin,
            "weights": self.weights,
            "groups": self.groups,
            "reduction": self.reduction,
            **({} if self.pairs == "binary" else {"pairs": self.pairs}),
        }


def polynomial(name, *terms):
    return Surrogate(name, [Term(c0, c1, c2, knot=knot) for c0, c1, c2, knot in terms])


def bending(name, *bends):
    """Return the sum of a (t - knot)^2 where t > knot, over pairs (a, knot)."""
    return polynomial(name, *((a * k * k, -2.0 * a * k, a, k) for a, k in bends))


def barrier_hinge(b=8.0, r=2.0):
    """Return the barrier hinge: slopes -b, 1 and b, with knots at -r and r."""
    return polynomial(
        "barrier hinge",
        (-b * r, -b, 0.0, None),
        ((1.0 + b) * r, 1.0 + b, 0.0, -r),
        (-(b - 1.0) * r, b - 1.0, 0.0, r),
    )


ZERO_ONE = polynomial("0/1", (1, 0, 0, 0))
# The slopes of these have one sign, so that sums over pairs do not cancel.
MONOTONE = (
    surrogates.SQUARED_HINGE,
    surrogates.LINEAR_HINGE,
    surrogates.HUBER_HINGE,
    ZERO_ONE,
    polynomial("0/1 beyond 0.1", (1, 0, 0, 0.1)),
    polynomial("jump", (1.0, 0.5, 0.25, 0.5)),
    bending("squares on a grid", (1.0, 0.0), (1.0, 0.5), (0.5, 2.0), (0.25, -1.0)),
    bending("squares on no grid", (1.0, 0.0), (1.0, 0.3), (0.5, 2.0**0.5)),
    bending("shallow Huber hinge", (0.125, -0.3), (-0.125, 0.7)),
    polynomial("capped", (0, 1, 0, 0), (2, -1, 0, 2)),
)
OTHERS = (
    surrogates.SQUARE,
    barrier_hinge(),
    barrier_hinge(200.0, 50.0),
    bending("hat", (1.0, 0.0), (-2.0, 1.0), (1.0, 2.0)),
    polynomial("line", (0, 1, 0, None)),
    polynomial("constant and line", (1, 0, 0, None), (0, -0.5, 0, None)),
    polynomial("bumpy", (0.5, 0, 0.5, None), (0, 1, 0, -0.5), (0, 0, -0.25, 1)),
    polynomial("steps", (1, 0, 0, 0), (-2, 0, 0, 0.1), (3, 0, 0, 0.3)),
)


def draw(seed, number, *, large=0.01):
    """Draw batch `number`; a share `large` of them has more than 1,500 rows."""
    rng = np.random.default_rng([seed, number])
    n = draw_size(rng, large)
    surrogate = draw_surrogate(rng, n)
    margin = draw_margin(rng, surrogate)
    dtype = pick(rng, (np.float32, np.float64))
    positive = rng.random(n) < draw_share(rng, n)
    if n > 1 and rng.random() < 0.97:  # else one class is rare
        first, second = rng.choice(n, 2, replace=False)
        positive[first], positive[second] = True, False
    name = pick(rng, tuple(SCORES))
    # Numbers are drawn as floats of the type of the scores, so that knots are hit exactly.
    with np.errstate(over="ignore"):
        scores = SCORES[name](rng, positive, dtype)
        scores = np.clip(scores, -np.finfo(dtype).max, np.finfo(dtype).max).astype(dtype)
    if rng.random() < 0.25:
        name += ", on knots"
        scores = put_on_knots(rng, scores, positive, surrogate, margin)
    weighting, weights = draw_weights(rng, positive)
    grouping, groups = draw_groups(rng, positive)
    return Batch(
        scores=scores,
        labels=pick(rng, CODINGS)(positive),
        vector=draw_vector(rng, n),
        surrogate=surrogate,
        margin=margin,
        weights=weights,
        groups=groups,
        reduction=pick(rng, ("mean", "sum")),
        kind=f"{name}; weights {weighting}; groups {grouping}",
    )


def pick(rng, options):
    return options[rng.integers(len(options))]


# Sizes on both sides of the limits between plans; `draw_share` aims at the other limits.
LIMITS = (4000, 4096, 6000, 8192, 10000, 16384, 32768)
FAR_LIMITS = (65536, 100_000, 131_072)


def draw_size(rng, large):
    u = rng.random()
    if u < large / 8:
        return int(pick(rng, FAR_LIMITS) + rng.integers(-2, 3))
    if u < large:
        return int(pick(rng, LIMITS) + rng.integers(-2, 3))
    if u < large + 0.1:
        return int(100 * 15 ** rng.random())
    return int(101 ** rng.random())


def draw_share(rng, n):
    """Return a share of positives.

    For large batches it is often next to a limit of `solve` in kernels.cpp, where n + k sources
    decide (k is 3, with weights 5, for several terms 20), and the sources are the rows of the
    smaller class; or the number of sources itself.
    """
    limits = [(rows - n) / k / n for rows, k in ((6000, 3), (10000, 3))]
    limits += [(rows - n) / 5 / n for rows in (15000, 25000)]
    limits += [(36 * buckets - n) / 20 / n for buckets in (1 << 13, 1 << 14, 1 << 15)]
    limits += [7000 / n]
    limits = [share * rng.uniform(0.98, 1.02) for share in limits if 0 < share < 0.5]
    if n > 1500 and limits and rng.random() < 0.5:
        share = pick(rng, tuple(limits))
    else:
        share = pick(rng, (0.5, 0.3, 0.1, 0.02, 1 / n))
    return pick(rng, (share, 1 - share))


def draw_surrogate(rng, n):
    u = rng.random()
    if u < 0.5:
        return pick(rng, MONOTONE)
    if u < 0.8 or n > 1500:
        return pick(rng, OTHERS)
    knots = (None, 0.0, 0.1, 0.3, 1.0, -1.0, 0.25, -0.5, 7.0)
    coefficients = (0.0, 0.0, 1.0, -1.0, 0.5, 3.0, 0.1)
    return polynomial(
        "drawn",
        *((*rng.choice(coefficients, 3), pick(rng, knots)) for _ in range(rng.integers(1, 6))),
    )


def draw_margin(rng, surrogate):
    u = rng.random()
    if u < 0.3:
        return surrogate.default_margin
    if u < 0.9:
        return pick(rng, (0.0, 0.1, 0.3, 1.0, 2.0, 0.7, 1.1))
    return pick(rng, (1e-17, 1e-300, 1e6, 1e12, 1e17, 1e100, 1e154, 1e308))


def normal(rng, positive):
    return rng.normal(size=positive.size) + positive


def outliers(rng, positive, dtype):
    scores, n = normal(rng, positive), positive.size
    if rng.random() < 0.5:
        scores = scores.round(1)
    far = rng.random(n) < pick(rng, (0.02, 0.2, 1 / n))
    far[rng.integers(n)] = True
    decades = rng.uniform(2, pick(rng, (8, 22, 38 if dtype is np.float32 else 300)), n)
    return np.where(far, rng.choice([-1.0, 1.0], n) * 10.0**decades, scores)


def spread(rng, positive, dtype):
    low, high = (-45, 38) if dtype is np.float32 else (-320, 307)
    signs = rng.choice([-1.0, 1.0], positive.size)
    return signs * 10.0 ** rng.uniform(low, high, positive.size)


def denormal(rng, positive, dtype):
    tiny = float(np.finfo(dtype).smallest_subnormal)
    return rng.integers(-9, 10, positive.size) * tiny * pick(rng, (1, 2.0**20))


def clusters(rng, positive, dtype):
    centres = rng.normal(size=3) * 10.0 ** rng.integers(-1, 5)
    width = 10.0 ** rng.integers(-6, 0)
    return rng.choice(centres, positive.size) + width * rng.normal(size=positive.size)


SCORES = {
    "normal": lambda rng, y, dtype: normal(rng, y),
    "one decimal": lambda rng, y, dtype: normal(rng, y).round(1),
    "two decimals": lambda rng, y, dtype: normal(rng, y).round(2),
    "multiples of 0.1": lambda rng, y, dtype: rng.integers(-20, 21, y.size) * 0.1,
    "integers": lambda rng, y, dtype: rng.integers(-3, 4, y.size),
    "quarters": lambda rng, y, dtype: rng.integers(-12, 13, y.size) / 4,
    "all equal": lambda rng, y, dtype: np.full(y.size, 0.1),
    "offset": lambda rng, y, dtype: normal(rng, y) + pick(rng, (1e6, -1e6, 1e3)),
    "grid with an offset": lambda rng, y, dtype: normal(rng, y).round(1) + 1e6,
    "separated": lambda rng, y, dtype: normal(rng, y) + 6 * y,
    "saturated": lambda rng, y, dtype: 1 / (1 + np.exp(-20 * normal(rng, y))),
    "outliers": outliers,
    "Cauchy": lambda rng, y, dtype: rng.standard_cauchy(y.size),
    "Cauchy cubed": lambda rng, y, dtype: rng.standard_cauchy(y.size) ** 3,
    "all sizes": spread,
    "denormal": denormal,
    "clusters": clusters,
}


def put_on_knots(rng, scores, positive, surrogate, margin):
    """Move positives to s_neg + shift of some negative and term, or at most two floats away."""
    neg, pos = np.flatnonzero(~positive), np.flatnonzero(positive)
    if not (neg.size and pos.size):
        return scores
    scores = scores.copy()
    moved = pos[rng.random(pos.size) < 0.7]
    shifts = np.array([term.shift for term in surrogate.at_knots(margin)])
    top = np.finfo(scores.dtype).max
    with np.errstate(over="ignore"):
        at = scores[rng.choice(neg, moved.size)].astype(np.float64) + rng.choice(shifts, moved.size)
        at = np.clip(at, -top, top).astype(scores.dtype)
    for _ in range(2):
        away = rng.integers(-1, 2, moved.size)
        with np.errstate(over="ignore", under="ignore"):
            at = np.where(away == 0, at, np.nextafter(at, np.where(away > 0, top, -top)))
    scores[moved] = at.astype(scores.dtype)
    return scores


def draw_weights(rng, positive):
    n = positive.size
    if rng.random() < 0.5:
        return "none", None
    name = pick(rng, tuple(WEIGHTS))
    return name, WEIGHTS[name](rng, positive, n)


def decades(low, high):
    return lambda rng, y, n: 10.0 ** rng.uniform(low, high, n)


WEIGHTS = {
    "constant 0.1": lambda rng, y, n: np.full(n, 0.1),
    "from 0.5 to 2": lambda rng, y, n: rng.uniform(0.5, 2, n),
    "integers": lambda rng, y, n: rng.integers(0, 4, n).astype(np.float64),
    "many zeros": lambda rng, y, n: rng.random(n) * (rng.random(n) < 0.5),
    "all zero": lambda rng, y, n: np.zeros(n),
    "ten decades": decades(-5, 5),
    "300 decades": decades(-150, 150),
    "1e160": decades(159, 160),
    "1e-170": decades(-171, -169),
    "1e300": decades(299, 300),
    "denormal": lambda rng, y, n: rng.integers(0, 9, n) * 5e-324,
    "by class": lambda rng, y, n: rng.uniform(0.5, 2, n) * np.where(y, 1e-300, 1e300),
}


def draw_groups(rng, positive):
    n = positive.size
    if rng.random() < 0.7:
        return "none", None
    name = pick(rng, ("few", "tiny", "by class", "one row each"))
    if name == "few":
        return name, rng.integers(0, 3, n)
    if name == "tiny":
        return name, rng.integers(0, min(n // 3 + 1, 2000), n)
    if name == "by class":  # most groups have one class
        return name, np.where(rng.random(n) < 0.8, positive, 2)
    return name, np.arange(n) % 2000


def draw_vector(rng, n):
    v = rng.normal(size=n)
    return pick(rng, (v, v.round(1), v + 1e9, v * 1e-3))
