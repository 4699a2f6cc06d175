"""The results of the array implementation for one batch."""

from __future__ import annotations

from typing import Any, NamedTuple


class PairSums(NamedTuple):
    """Results for a batch, in the fields of `everypair._dispatch.Result`; None if not asked for.

    `value` and `pair_weight` have the shape of the batch without its rows, the others that of the
    batch.
    """

    value: Any
    pair_weight: Any
    grad: Any
    hess: Any
    hvp: Any
