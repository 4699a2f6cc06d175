"""The two classes of a batch, sorted, with prefix sums: the parts of the NumPy kernel.

Groups are laid one after the other, and every sum starts anew at each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Long = NDArray[np.longdouble]
    Floats = NDArray[np.float64]
    Index = NDArray[np.intp]

__all__ = [
    "PairClass",
    "PrefixSums",
    "by_group",
    "classes",
    "lowest",
    "mirrored",
    "prefix_sums",
    "ranks",
    "restarting_cumsum",
    "sorted_by_score",
]


class PairClass(NamedTuple):
    """The rows of one class, sorted by group: place in the batch, score, weight, vector."""

    rows: Index
    group: Index
    x: Floats
    w: Long
    z: Long  # the vector of a Hessian-vector product; anything where there is none


class PrefixSums(NamedTuple):
    """Prefix sums of a sorted class, each relative to the source where it stands."""

    x: Long
    mass: Long
    first: Long
    second: Long | None
    vector: Long | None


def classes(
    scores: NDArray[Any],
    positive: NDArray[np.bool_],
    weights: Floats | None,
    offsets: NDArray[np.int64] | None,
    vector: Floats | None,
) -> tuple[PairClass, PairClass, int]:
    """Return the positives and the negatives, groups in order, and the number of groups."""
    n = scores.shape[0]
    n_groups = 1 if offsets is None else offsets.shape[0] - 1
    group = np.zeros(n, np.intp)
    if offsets is not None:
        group = np.repeat(np.arange(n_groups), np.diff(offsets))
    if vector is not None:
        # The Hessian sends constants to zero: without the common part, less is left to cancel.
        vector = vector - vector.min()

    def rows_where(mask: NDArray[np.bool_]) -> PairClass:
        # Rows of weight zero have neither gradient nor say, but could be a far-off lowest positive.
        rows = np.flatnonzero(mask if weights is None else mask & (weights > 0.0))
        w = np.ones(rows.shape[0], np.longdouble) if weights is None else weights[rows]
        z = w if vector is None else vector[rows]
        return PairClass(
            rows,
            group[rows],
            scores[rows].astype(np.float64),
            w.astype(np.longdouble),
            z.astype(np.longdouble),
        )

    return rows_where(positive), rows_where(~positive), n_groups


def sorted_by_score(c: PairClass) -> PairClass:
    """Return a class sorted by group and, inside a group, by score."""
    one_group = c.group.size == 0 or c.group[0] == c.group[-1]
    order = np.argsort(c.x, kind="stable") if one_group else np.lexsort((c.x, c.group))
    return PairClass(c.rows[order], c.group[order], c.x[order], c.w[order], c.z[order])


def mirrored(c: PairClass, n_groups: int) -> PairClass:
    """Return a sorted class on the reversed axis, sorted again: above becomes below."""
    flip = slice(None, None, -1)
    return PairClass(c.rows[flip], n_groups - 1 - c.group[flip], -c.x[flip], c.w[flip], c.z[flip])


def prefix_sums(c: PairClass, *, second: bool, vector: bool) -> PrefixSums:
    """Return the sums W and T of `_numpy`, and those that are asked for."""
    x = c.x.astype(np.longdouble)
    head = np.diff(c.group, prepend=-1) != 0
    gap = np.diff(x, prepend=x[:1])
    mass = restarting_cumsum(c.w, c.group)
    mass_before = _before(mass, head)
    first = restarting_cumsum(gap * mass_before, c.group)
    step = gap * (2 * _before(first, head) + gap * mass_before) if second else None
    return PrefixSums(
        x,
        mass,
        first,
        None if step is None else restarting_cumsum(step, c.group),
        restarting_cumsum(c.w * c.z, c.group) if vector else None,
    )


def ranks(
    source: Floats, source_group: Index, query: Floats, query_group: Index, *, ties: bool
) -> Index:
    """Count the sources before each query, in its own group and all earlier ones."""
    one_group = max(source_group[-1], query_group[-1]) == min(source_group[0], query_group[0])
    if one_group:
        return np.searchsorted(source, query, side="right" if ties else "left")
    is_source = np.repeat((True, False), (source.size, query.size))
    late = ~is_source if ties else is_source
    order = np.lexsort(
        (late, np.concatenate((source, query)), np.concatenate((source_group, query_group)))
    )
    rank = np.empty(order.size, np.intp)
    rank[order] = np.cumsum(is_source[order])
    return rank[source.size :]


def by_group(values: Long, c: PairClass, n_groups: int) -> Long:
    """Add the values of a class up, group by group."""
    out = np.zeros(n_groups, np.longdouble)
    heads = np.flatnonzero(np.diff(c.group, prepend=-1))
    if heads.size == 1:
        out[c.group[0]] = values.sum()
    elif heads.size:
        out[c.group[heads]] = np.add.reduceat(values, heads)
    return out


def lowest(c: PairClass, n_groups: int) -> Floats:
    """Return the lowest score of a class in each group; 0 where it has no row."""
    out = np.zeros(n_groups)
    heads = np.flatnonzero(np.diff(c.group, prepend=-1))
    if heads.size:
        out[c.group[heads]] = np.minimum.reduceat(c.x, heads)
    return out


def restarting_cumsum(values: Long, group: Index) -> Long:
    """Add values up from the beginning of their group.

    Group by group: taking the sum so far off one running sum would leave its rounding errors in
    groups that are far smaller.
    """
    sums = np.empty_like(values)
    heads = np.flatnonzero(np.diff(group, prepend=-1)).tolist()
    for start, stop in zip(heads, [*heads[1:], group.size], strict=True):
        np.cumsum(values[start:stop], out=sums[start:stop])
    return sums


def _before(sums: Long, head: NDArray[np.bool_]) -> Long:
    """Return the sums up to the row before; nothing at the head of a group."""
    out = np.zeros_like(sums)
    out[1:] = sums[:-1]
    out[head] = 0.0
    return out
