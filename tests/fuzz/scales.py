"""What the errors of a batch are relative to."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

TOLERANCE = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}


class Scales(NamedTuple):
    """Sums over pairs of absolute values; those of derivatives are the largest of each class.

    If no pair cancels another, as for the hinges, they are the loss and the largest derivatives
    themselves.
    """

    value: float
    grad: np.ndarray
    hess: np.ndarray
    hvp: np.ndarray
    overflows: bool  # whether an OverflowError is right
    unbounded: bool  # whether weights of pairs overflow: only NaN is wrong


def scales_of(batch, expected):
    """Estimate the scales of a batch in float64, large classes by a sample of their rows.

    Four errors that no kernel can avoid are added, as scales whose share `TOLERANCE` they are:
    terms that cancel leave rounding errors of the size that they have next to their knots;
    coefficients of terms are rounded themselves; the parts of one term may cancel, as in -1 + t
    next to t = 1; and in the product of the Hessian and a vector, heavy rows with the same entry of
    the vector cancel.
    """
    most = 600  # rows of a class; larger classes are sampled
    classes = (batch.positive, ~batch.positive)
    if batch.pairs != "binary":  # every row may win and lose
        classes = (np.ones(batch.scores.size, bool),) * 2
    pos, neg = (sample(batch, np.flatnonzero(of), most) for of in classes)
    s, v, top = batch.scores.astype(np.float64), batch.vector, np.finfo(np.float64).max
    w = np.ones(s.size) if batch.weights is None else batch.weights
    with np.errstate(all="ignore"):
        # Weights relative to the largest of their class; `unit` is the product of the largest ones.
        # If these rows have no pairs, the products of the others must not vanish.
        largest = [w[of].max(initial=0.0) or 1.0 for of in classes]
        u = w / np.where(classes[0], *largest)
        together = np.maximum(np.outer(u[pos], u[neg]), 1e-290) * batch.are_pairs(pos, neg)
        grow, grow_neg = (
            np.count_nonzero(of) / max(sampled.size, 1)
            for of, sampled in zip(classes, (pos, neg), strict=True)
        )
        unit = largest[0] * largest[1]
        if batch.reduction == "mean":
            binary = batch.pairs == "binary"
            weight = pair_weight(batch, u) if binary else together.sum() * grow * grow_neg
            unit = 1.0 / (weight or 1.0)
        t = np.clip((s[neg] - s[pos][:, None]) + batch.margin, -top, top)
        far = float(np.abs(t).max(initial=0.0))
        sizes, rounding = sizes_of(batch, float(t.max(initial=-top)))
        share = 32 * np.finfo(np.float64).eps / TOLERANCE[batch.scores.dtype]
        # A pair that is next to a knot may be rounded onto it.
        above = np.nextafter(t, np.inf)
        of_t = [
            np.maximum(np.abs(f(t)), np.abs(f(above))) + size + share * part
            for f, size, part in zip(functions(batch), sizes, parts_of(batch, t), strict=True)
        ]
        # Pairs of different groups may be infinitely far apart.
        pairs = [np.where(together > 0.0, together * part, 0.0) for part in of_t]
        spread = np.abs(v[pos][:, None] - v[neg]) + share * (v.max() - v.min())
        pairs.append(together * (of_t[2] * spread + sizes[2] * (v.max() - v.min())))
        by_class = [by_side(batch, p, grow, grow_neg) for p in pairs]
        masses = by_side(batch, together, 1.0, 1.0)
        of_pair = max(
            abs(term.c0) + abs(term.c1) * (far + batch.margin) + abs(term.c2) * far * far
            for term in batch.surrogate.terms
        )
        extra = rounding / TOLERANCE[batch.scores.dtype]
        arrays = [
            np.maximum(
                unit * (scale + masses * added),
                [np.abs(exact[of]).max(initial=0.0) for of in classes[::-1]],
            )
            for scale, exact, added in zip(
                by_class[1:], expected[1:4], (extra[1], extra[2], extra[2]), strict=True
            )
        ]
        total = (pairs[0].sum() + together.sum() * extra[0]) * grow * grow_neg * unit
        value = max(float(total), abs(expected.value))
        overflows = not (of_pair * s.size**2 * max(unit, 1.0) < 1e290)
        # Sums of scores overflow where their differences may not.
        overflows |= not (8 * s.size * (float(np.abs(s).max()) + batch.margin) < top)
    return Scales(value, *arrays, overflows, unbounded=not math.isfinite(unit))


def by_side(batch, p, grow, grow_neg):
    """Return the largest sum over the pairs of a row, for negatives and for positives."""
    of_neg, of_pos = p.sum(0) * grow, p.sum(1) * grow_neg
    if batch.pairs != "binary":
        of_neg = of_pos = of_neg + of_pos
    return np.array([of_neg.max(initial=0.0), of_pos.max(initial=0.0)])


def sample(batch, rows, most):
    """Return every k-th row of a class in the order of its scores, and the heaviest rows.

    Both ends of the order are included. If there are groups, all rows are, unless there are many.
    """
    if rows.size <= (most if batch.groups is None else 8 * most):
        return rows
    order = rows[np.argsort(batch.scores[rows], kind="stable")]
    found = order[np.linspace(0, rows.size - 1, most).astype(int)]
    if batch.weights is None:
        return found
    return np.union1d(found, rows[np.argsort(batch.weights[rows])[-most // 4 :]])


def pair_weight(batch, u):
    groups = np.zeros(u.size, int) if batch.groups is None else batch.groups.astype(int)
    of_pos, of_neg = (
        np.bincount(groups, np.where(of, u, 0.0)) for of in (batch.positive, ~batch.positive)
    )
    return float(of_pos @ of_neg)


def functions(batch):
    return batch.surrogate.value, batch.surrogate.slope, batch.surrogate.curvature


def parts_of(batch, t):
    """Return the sums of absolute values that value, slope and curvature of one polynomial add up.

    Terms without a knot are one polynomial. For other sums of terms they are 0: `sizes_of` covers
    these.
    """
    reached = [
        k for k in batch.surrogate.terms if k.knot is None or k.knot < t.max(initial=-np.inf)
    ]
    knots = {term.knot for term in reached}
    if not reached or len(knots) > 1 or (len(reached) > 1 and knots != {None}):
        return (np.zeros_like(t),) * 3
    (knot,) = knots
    size = np.where(t > (-np.inf if knot is None else knot), np.abs(t), 0.0)
    c0, c1, c2 = (abs(sum(getattr(term, c) for term in reached)) for c in ("c0", "c1", "c2"))
    counts = size > 0.0
    return c0 * counts + c1 * size + c2 * size * size, c1 * counts + 2.0 * c2 * size, 0.0 * size


def sizes_of(batch, most):
    """Return the size of value, slope and curvature next to the knots, and rounding errors there.

    Terms whose knots no pair reaches are left out, and so are those of surrogates of one term.
    """
    sizes, rounding = np.zeros(3), np.zeros(3)
    terms = [t for t in batch.surrogate.terms if t.knot is not None]
    for term in terms:
        k = term.knot
        if len(batch.surrogate.terms) > 1 and k <= most:
            for t in (k, np.nextafter(k, np.inf)):
                sizes = np.maximum(sizes, np.abs([f(t) for f in functions(batch)]))
        if k:
            parts = abs(term.c0) + abs(term.c1 * k) + abs(term.c2 * k * k)
            rounding += [parts, abs(term.c1) + 2 * abs(term.c2 * k), 0.0]
    floats = np.finfo(np.float64)  # weighted distances may be denormal numbers
    return sizes, 8 * floats.eps * rounding + 16 * floats.smallest_subnormal
