"""The two classes of rows of which every batch of the sampler has some."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from everypair.inputs import batches, ordered, pair_options, survival

Rows = NDArray[np.int64]
_ADVICE = "A batch of one class has no pair to train on."


def rows_of_both_classes(labels: ArrayLike | torch.Tensor, pairs: str) -> tuple[Rows, Rows]:
    """Check the labels; return the rows of positives and of negatives.

    Ordered targets are cut between two of their values, as near to the middle of the rows as
    possible; the upper part is positive. So every batch has a pair. Survival times are positive if
    they are events; if all of them are, the early half of the times is.

    Examples
    --------
    >>> [rows.tolist() for rows in rows_of_both_classes([0, 0, 3, 0, 1, 0, 0], "ordered")]
    [[2, 4], [0, 1, 3, 5, 6]]
    """
    pair_options.check_pairs(pairs, "harrell")
    given = _on_cpu(labels)
    if pairs == "binary":
        n = len(given) if hasattr(given, "__len__") else 0
        positive = batches.positives(batches.batch_from(np.zeros(n, dtype=np.float32), given))
    elif pairs == "ordered":
        positive = _upper_part(ordered.target_from(given))
    else:
        times = survival.survival_from(given)
        positive = _upper_part(-times.times) if times.events.all() else times.events
    pos, neg = np.flatnonzero(positive), np.flatnonzero(~positive)
    if len(pos) and len(neg):
        return pos, neg
    if pairs == "binary":
        found = f"both classes; got {len(pos)} positives and {len(neg)} negatives"
    else:
        found = f"at least {'two different targets' if pairs == 'ordered' else 'one event'}"
        found += f"; got none in {len(positive)} rows"
    raise ValueError(f"labels must hold {found}. {_ADVICE}")


def _upper_part(target: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows are above the cut that is nearest to the middle."""
    values, counts = np.unique(target, return_counts=True)
    below = np.cumsum(counts)[:-1]
    if not below.size:
        return np.zeros(len(target), bool)
    cut = values[1:][np.argmin(np.abs(2 * below - len(target)))]
    above: NDArray[np.bool_] = target >= cut
    return above


def _on_cpu(labels: Any) -> Any:
    if isinstance(labels, tuple):
        return tuple(map(_on_cpu, labels))
    return labels.detach().cpu() if isinstance(labels, torch.Tensor) else labels
