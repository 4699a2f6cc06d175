"""The hardest rows of each class, to which a loss over a part of the ROC curve is restricted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everypair.arrays.double_double import Number, each
from everypair.arrays.rows import Runs

if TYPE_CHECKING:
    from everypair.arrays.double_double import Arrays

    Array = Any


def hardest_weights(
    xp: Arrays,
    scores: Array,
    positive: Array,
    weights: Array,
    groups: Array,
    max_fpr: float,
    min_tpr: float,
) -> Array:
    """Multiply weights (..., n) by the share of each row that a partial AUC keeps.

    Kept are the highest negatives up to a share of `max_fpr` of their weight, and the lowest
    positives up to a share of ``1 - min_tpr``, in each group. A row at the boundary is kept in
    part, and rows with equal scores are kept in the same share. Of negatives that are to have the
    share 0 the highest is kept: the limit of small shares, up to a factor.

    All arrays have the shape (..., n), and belong to the library of `xp`; `groups` may be None.
    """
    hardness = xp.where(positive, -scores, scores)
    keys = [-hardness, xp.as_uint8(positive), *([] if groups is None else [groups])]
    order = xp.order(keys)
    minus_hardness, is_positive, *group = (xp.gather(key, order) for key in keys)
    w = xp.gather(weights, order)
    is_first = xp.broadcast(xp.row_numbers(scores) == 0, order.shape)
    is_class = is_first | (is_positive != xp.roll(is_positive, 1))
    for numbers in group:
        is_class = is_class | (numbers != xp.roll(numbers, 1))
    is_block = is_class | (minus_hardness != xp.roll(minus_hardness, 1))
    classes = Runs(xp, xp.row_numbers(scores), *xp.bounds(xp.running_count(is_class)))
    head, tail = xp.bounds(xp.running_count(is_block))
    # Over a power of two for each class of each group, which share running sums.
    largest, smallest = xp.group_max(w, classes.start), xp.float_range[0]
    w = w / xp.keep_bits(xp.where(largest > smallest, largest, smallest), xp.mantissa_bits)
    up_to = xp.prefix(Number(w), classes)
    before = each(lambda part: xp.gather(part, head), classes.before(up_to))
    total = xp.gather(up_to.high, classes.stop)
    weight_before = before.high
    block_weight = xp.minus(each(lambda part: xp.gather(part, tail), up_to), before).high
    is_positive = is_positive == 1
    room = xp.where(is_positive, (1.0 - min_tpr) * total, max_fpr * total) - weight_before
    if max_fpr == 0.0:
        room = xp.where(is_positive, room, xp.where(weight_before == 0.0, block_weight, 0.0))
    share = room / xp.where(block_weight > 0.0, block_weight, 1.0)
    share = xp.where(share > 1.0, 1.0, xp.where(share > 0.0, share, 0.0))
    return weights * xp.scatter(share, order)
