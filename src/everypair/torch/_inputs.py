"""The door for tensors: types, shapes and devices are checked here, values where they are used.

Whatever passes leaves with rows in the last dimension, (n,) for one task and (tasks, n) for more,
which is how everything behind the door wants it. An error names the argument, the rule, what
arrived and what to do about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

if TYPE_CHECKING:
    Data = tuple[Tensor, Tensor | None, Tensor | None]
    Batch = tuple[Tensor, Tensor, Tensor | None, Tensor | None]

__all__ = [
    "LABELS",
    "batch_from",
    "check_reduction",
    "data_for",
    "score_rows",
    "value_dtype",
    "without_missing",
]

_FLOATS = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
# Kernels read few types of labels: the others travel in one that holds their values. uint64 goes to
# float because 2**64 - 1 would arrive in int64 as a valid label.
LABELS = {
    torch.bool: torch.bool,
    torch.int8: torch.int8,
    torch.uint8: torch.uint8,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.int32: torch.int32,
    torch.uint32: torch.int64,
    torch.int64: torch.int64,
    torch.uint64: torch.float64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}
_REDUCTIONS = frozenset(("mean", "sum", "none"))


def batch_from(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    groups: Tensor | None = None,
) -> Batch:
    """Return scores, labels, weights and groups with rows in the last dimension."""
    data = data_for(scores, labels, weights, groups)
    return score_rows(scores), *data


def score_rows(scores: Tensor) -> Tensor:
    """Return scores that passed the door with rows in the last dimension."""
    if scores.dim() == 1:
        return scores
    return scores.squeeze(1) if scores.shape[1] == 1 else scores.t()


def data_for(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    groups: Tensor | None = None,
) -> Data:
    """Check everything; return labels, weights and groups with rows in the last dimension."""
    if not isinstance(scores, Tensor):
        _raise_not_a_tensor("scores", scores)
    if scores.dtype not in _FLOATS:
        raise ValueError(
            f"scores must be floats, because they receive a gradient; got {scores.dtype}. "
            "Pass scores.float()."
        )
    shape = scores.shape
    if not 1 <= len(shape) <= 2:
        raise ValueError(
            f"scores must have the shape (n,) or (n, tasks); got {tuple(shape)}. "
            "Pass scores.flatten(1) if all other dimensions are tasks."
        )
    if 0 in shape:
        raise ValueError(
            f"scores must hold at least one row and one task; got the shape {tuple(shape)}. "
            "Check the filter before it."
        )
    n_tasks = shape[1] if len(shape) == 2 else 1
    label_rows = _rows_of(labels, "labels", scores, n_tasks)
    if labels.dtype not in LABELS:
        raise ValueError(
            f"labels must be whole numbers, bools or floats; got {labels.dtype}. "
            "Pass labels.float()."
        )
    if n_tasks > 1 and label_rows.dim() == 1:
        raise ValueError(
            f"labels must have one column per task; got the shape {tuple(labels.shape)} for scores "
            f"of shape {tuple(shape)}. Pass labels[:, None].expand_as(scores) if all tasks share "
            "them, or one score per row if there is one task."
        )
    if weights is not None:
        if isinstance(weights, Tensor) and weights.requires_grad:
            raise ValueError(
                "weights must not require a gradient, because the loss is differentiated in the "
                "scores only; got weights that do. Pass weights.detach()."
            )
        weights = _rows_of(weights, "weights", scores, n_tasks)
        if weights.is_complex():
            raise ValueError(f"weights must be real numbers; got {weights.dtype}.")
    if groups is not None:
        groups = _rows_of(groups, "groups", scores, 1)
        if groups.is_floating_point() or groups.is_complex():
            raise ValueError(
                f"groups must be whole numbers, one for every row; got {groups.dtype}. "
                "Number them first: torch.unique(groups, return_inverse=True)[1]."
            )
    return label_rows, weights, groups


def check_reduction(reduction: str) -> str:
    """Return the reduction, or say what is wrong with it."""
    if reduction not in _REDUCTIONS:
        raise ValueError(
            "reduction must be 'mean' (divide by the total pair weight), 'sum' or 'none' (one "
            f"mean for each task); got {reduction!r}. There is no reduction per row: a loss "
            "belongs to pairs."
        )
    return reduction


def value_dtype(scores: Tensor) -> torch.dtype:
    """Return the type of losses, and of gradients until they are rounded to that of the scores."""
    return torch.float64 if scores.dtype is torch.float64 else torch.float32


def without_missing(labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return labels without NaN, and weights that leave out the rows that had it."""
    unknown = labels.isnan()
    weights = torch.ones_like(labels) if weights is None else weights.expand(labels.shape)
    return labels.masked_fill(unknown, 1.0), weights.masked_fill(unknown, 0.0)


def _rows_of(tensor: Tensor, name: str, scores: Tensor, n_tasks: int) -> Tensor:
    """Check what comes with the scores; return (n,) where it is one column, else (tasks, n)."""
    if not isinstance(tensor, Tensor):
        _raise_not_a_tensor(name, tensor)
    if tensor.device != scores.device:
        raise ValueError(
            f"{name} must be on the device of the scores; got {name} on {tensor.device} and scores "
            f"on {scores.device}. Pass {name}.to(scores.device)."
        )
    shape = tensor.shape
    n = scores.shape[0]
    if len(shape) == 1 and shape[0] == n:
        return tensor
    if len(shape) == 2 and shape[0] == n and shape[1] in (1, n_tasks):
        # One column goes with (n,) scores as well as with those of several tasks.
        return tensor.squeeze(1) if shape[1] == 1 else tensor.t()
    allowed = [f"({n},)"] if n_tasks == 1 or name == "weights" else []
    allowed += [f"({n}, {n_tasks})"] if n_tasks > 1 else []
    raise ValueError(
        f"{name} must have the shape {' or '.join(allowed)} for scores of shape "
        f"{tuple(scores.shape)}; got {tuple(shape)}. "
        "Check that both come from the same rows and tasks."
    )


def _raise_not_a_tensor(name: str, given: object) -> NoReturn:
    raise ValueError(
        f"{name} must be a tensor; got {type(given).__name__}. Pass torch.as_tensor({name}), or "
        "call everypair.pair_loss, which takes arrays and lists."
    )
