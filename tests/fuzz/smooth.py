"""The double sum over all pairs in extended precision, for surrogates that are no polynomials."""

from __future__ import annotations

import numpy as np

from everypair import naive

from .oracle import Answer
from .scales import TOLERANCE, Scales

MOST_ROWS = 1500
LARGE = 1e290
SMALL = 1e-290  # smaller results, for pairs of weight 1, may lose digits: see docs/mathematics.md


def double_sum(batch):
    """Return all results of a batch, and the sums of absolute values that errors are relative to.

    Numbers have 64 bits and exponents up to 2^16384, so neither rounding nor weights matter.
    """
    n = batch.scores.size
    if batch.pairs == "binary":
        i, j = np.flatnonzero(batch.positive), np.flatnonzero(~batch.positive)
    else:
        i = j = np.arange(n)
    s, v = batch.scores.astype(np.longdouble), batch.vector.astype(np.longdouble)
    w = np.ones(n) if batch.weights is None else batch.weights
    weight = np.outer(w[i].astype(np.longdouble), w[j]) * batch.are_pairs(i, j)
    total = weight.sum()
    unit = (1 / total if total else total) if batch.reduction == "mean" else np.longdouble(1)
    ((_, formula),) = naive.pieces_of(batch.surrogate)
    with np.errstate(all="ignore"):
        parts = formula(batch.margin - (s[i][:, None] - s[j]))
        value, slope, curvature = (np.where(weight > 0, weight * part, 0) for part in parts)
        bend = np.abs(curvature)
        if batch.surrogate.name.startswith("sigmoid"):
            # It crosses zero, and its fit has coefficients of both signs, up to some hundreds.
            bend = 4 * slope * batch.surrogate.terms[-1].rate
        apart = v[i][:, None] - v[j]
        # Rounding errors of v_i sum phi'' - sum phi'' v_j do not cancel where v_i = v_j. Each phi''
        # is a sum of some twenty powers with coefficients of both signs.
        share = 512 * np.finfo(np.float64).eps / TOLERANCE[batch.scores.dtype]
        blurred = np.abs(apart) + share * (v.max() - v.min())

        def of_rows(matrix, sign):
            rows = np.zeros(n, np.longdouble)
            rows[i] += matrix.sum(1)
            rows[j] += sign * matrix.sum(0)
            return (unit * rows).astype(np.float64)

        def largest(matrix):
            rows = of_rows(np.abs(matrix), 1)
            classes = (~batch.positive, batch.positive)
            of = classes if batch.pairs == "binary" else (slice(None),) * 2
            return np.array([rows[k].max(initial=0.0) for k in of])

        answer = Answer(
            float(unit * value.sum()),
            of_rows(-slope, -1),
            of_rows(curvature, 1),
            of_rows(curvature * apart, -1),
            concordance(s, weight, i, j),
        )
        sums = [float(unit * np.abs(value).sum())]
        sums += [largest(matrix) for matrix in (slope, bend, bend * blurred)]
        least = SMALL * float(unit * total) / TOLERANCE[batch.scores.dtype]
        # Sums over pairs may overflow where their mean, or their product with a weight, does not.
        most = max(np.abs(np.where(weight > 0, part, 0)).max(initial=0) for part in parts)
        finite = most * n**2 < LARGE and all(np.all(part < LARGE) for part in sums)
    return answer, Scales(
        *(part + least for part in sums), overflows=not finite, unbounded=not finite
    )


def concordance(s, weight, i, j):
    order = np.sign(s[i][:, None] - s[j])
    total = weight.sum()
    return float((weight * (1 + order)).sum() / 2 / total) if total else None
