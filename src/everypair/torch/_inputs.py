"""Validate tensors and convert them for the backends.

Types, shapes and devices are checked here for every call. Values are checked by the CPU kernel in
its own first pass, and by `check_values` for the other backends. Everything behind this module
expects rows in the last dimension: (n,) for one task and (tasks, n) for several. An error names
the argument, the rule, what arrived and what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from everypair.inputs import batches, messages, ranked, survival
from everypair.torch import _arrays
from everypair.torch._compat import is_transformed
from everypair.torch._options import LossOptions

Labels = Tensor | tuple[Tensor, Tensor]
Data = tuple[Tensor, Tensor | None, Tensor | None]
Derivatives = tuple[Tensor | None, Tensor | None, Tensor | None]
Order = tuple[NDArray[np.intp] | None, NDArray[np.int64] | None]

WIDE_DTYPES = frozenset((torch.float32, torch.float64))
"""The types of scores that kernels compute in."""
_FLOATS = WIDE_DTYPES | {torch.float16, torch.bfloat16}
_STRIDED = torch.strided
_LABELS = (torch.bool, torch.int8, torch.uint8, torch.int32, torch.int64, *WIDE_DTYPES)
LABEL_DTYPES = {dtype: dtype for dtype in _LABELS} | {
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.float64,  # not int64, where 2**64 - 1 would become -1, a valid label
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
"""The type in which the CPU kernel reads labels of each type; it holds all of their values."""


def checked(
    scores: Tensor,
    labels: Labels,
    weights: Tensor | None,
    groups: Tensor | None,
    options: LossOptions,
    *,
    of_rank: bool = False,
) -> tuple[Tensor, Tensor | None, LossOptions]:
    """Check a batch; return labels in one tensor, the weights of the pairs that count, and options.

    Values are not checked, except those of survival times with events. The rows of one rank
    (`of_rank`) may be none, and a partial AUC selects none of them before all ranks are joined.
    """
    if options.pairs in ("survival", "uno"):
        labels = survival_labels(scores, labels, options.check)
    target: Tensor = labels  # type: ignore[assignment]
    check_data(scores, target, weights, groups, may_be_empty=of_rank)
    if scores.dim() == 2 and target.is_floating_point():
        options = LossOptions(*options[:-1], missing=True)
    if options.rates is not None and not of_rank:
        weights = kept_weights(scores, target, weights, groups, options.rates)
    return target, weights, options


def kept_weights(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    groups: Tensor | None,
    rates: tuple[float, float],
) -> Tensor:
    """Return the weights of checked tensors, 0 for rows that a partial AUC leaves out."""
    rows = in_rows(scores, labels, weights, groups)
    return in_columns(_arrays.hardest_weights(*rows, *rates), scores)


def survival_labels(scores: Any, labels: Any, check: bool | None) -> Any:
    """Return times, negative where censored, in the shape of the scores.

    `labels` are a tuple (times, events), columns (time, event), or such times already.
    """
    if isinstance(labels, Tensor):
        is_one_task = isinstance(scores, Tensor) and scores.shape[1:].numel() == 1
        if not (is_one_task and labels.dim() == 2 and labels.shape[1] == 2):
            return labels
        labels = labels[:, 0], labels[:, 1]
    elif not (isinstance(labels, tuple) and len(labels) == 2):
        return labels
    times, events = labels
    if not (isinstance(times, Tensor) and isinstance(events, Tensor)):
        return times  # the checks of the labels report what they are
    if times.shape != events.shape:
        raise ValueError(
            "labels must have one event per time; got the shapes "
            f"{tuple(times.shape)} and {tuple(events.shape)}. Pass (times, events)."
        )
    checks = times.is_cpu if check is None else check
    if checks and not (torch.compiler.is_compiling() or is_transformed()):
        flat = (array_from(t.detach().flatten()) for t in (times.nan_to_num(), events))
        survival.survival_from(tuple(flat))
    if not times.is_floating_point():
        times = times.to(torch.float32 if times.device.type == "mps" else torch.float64)
    # Where values cannot be read, the check of the labels finds NaN instead.
    signed = torch.where(events == 1, times, torch.where(events == 0, -times, torch.nan))
    return torch.where(times >= 0.0, signed, torch.nan)


def check_data(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    groups: Tensor | None = None,
    *,
    may_be_empty: bool = False,
) -> None:
    """Check types, shapes and devices of the arguments of `everypair.torch.pair_loss`."""
    _check_floats(scores, "scores")
    shape = scores.shape
    if not 1 <= len(shape) <= 2:
        raise ValueError(
            f"scores must have the shape (n,) or (n, tasks); got {tuple(shape)}. "
            "Pass scores.flatten(1) if all other dimensions are tasks."
        )
    if 0 in (shape[1:] if may_be_empty else shape):
        raise ValueError(
            f"scores must hold at least one row and one task; got the shape {tuple(shape)}. "
            "Check the filter before it."
        )
    device, n_tasks = scores.device, 1 if len(shape) == 1 else shape[1]
    check_rows(labels, "labels", shape, n_tasks, device)
    if labels.requires_grad:
        _raise_not_constant("labels")
    if labels.dtype not in LABEL_DTYPES:
        raise ValueError(
            f"labels must be whole numbers, bools or floats; got {labels.dtype}. "
            "Pass labels.float()."
        )
    if n_tasks > 1 and labels.shape != shape:
        raise ValueError(
            f"labels must have one column per task; got the shape {tuple(labels.shape)} for scores "
            f"of shape {tuple(shape)}. If there is one task, pass one score per row, for two "
            "logits scores[:, 1] - scores[:, 0]; if all tasks share the labels, pass "
            "labels[:, None].expand_as(scores)."
        )
    if weights is not None:
        check_rows(weights, "weights", shape, n_tasks, device)
        if weights.requires_grad:
            _raise_not_constant("weights")
        if weights.is_complex():
            messages.raise_not_real("weights", weights.dtype)
    if groups is not None:
        check_groups(groups, "groups", shape, device)


def check_scores(scores: Tensor, name: str, device: torch.device | None = None) -> None:
    """Check type, shape and device of scores without labels: (n,) or (n, 1), n may be 0."""
    _check_floats(scores, name)
    if scores.dim() != 1 and scores.shape[1:] != (1,):
        raise ValueError(
            f"{name} must have the shape (n,) or (n, 1); got {tuple(scores.shape)}. For several "
            "tasks, call once per column."
        )
    if device is not None and scores.device != device:
        _raise_device(name, scores.device, device)


def in_rows(
    scores: Tensor, labels: Tensor, weights: Tensor | None, groups: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return checked tensors with rows in the last dimension: (n,) or (tasks, n)."""
    return (
        scores if scores.dim() == 1 else _as_rows(scores),
        labels if labels.dim() == 1 else _as_rows(labels),
        None if weights is None else _as_rows(weights),
        None if groups is None else _as_rows(groups),
    )


def in_columns(derivative: Tensor, scores: Tensor) -> Tensor:
    """Return a derivative with rows in the last dimension in the shape of the scores."""
    if scores.dim() == 1:
        return derivative
    return derivative.unsqueeze(1) if derivative.dim() == 1 else derivative.t()


def check_integer(name: str, value: Any, *, at_least: int) -> int:
    """Check an argument that must be a whole number, and return it as an int."""
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if is_integer and value >= at_least:
        return int(value)
    raise ValueError(f"{name} must be a whole number of at least {at_least}; got {value!r}.")


def check_values(
    scores: Tensor, labels: Tensor, weights: Tensor | None, pairs: str = "binary"
) -> None:
    """Raise if a value is not allowed, for scores (..., n) on any device; waits for the device."""
    # One pass: a sum that is not finite has such a score, or is too large and is looked at below.
    valid = scores.sum(dtype=value_dtype(scores)).isfinite()
    if pairs == "binary" and labels.dtype is not torch.bool:
        two = ((labels == 0) | (labels == 1)).all() | ((labels == -1) | (labels == 1)).all()
        valid = valid & two
    elif pairs != "binary":
        valid = valid & labels.isfinite().all()
    if weights is not None:
        valid = valid & ((weights >= 0.0) & weights.isfinite()).all()
    if bool(valid):
        return
    shape = scores.shape
    tensors = (None if t is None else t.cpu() for t in (scores, labels, weights))
    for k, row in enumerate(zip(*(each_row(t, shape) for t in tensors), strict=True)):
        try:
            x, y, w = row
            batch = batch_from(x, y, w, pairs=pairs)
            if pairs == "binary":
                batches.positives(batch)
        except ValueError as error:
            if shape[:-1].numel() == 1:
                raise
            raise ValueError(f"in column {k}, {error}") from None


def without_missing(labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return labels without NaN, and weights that are 0 where labels were NaN."""
    missing = labels.isnan()
    weights = torch.ones_like(labels) if weights is None else weights.expand(labels.shape)
    return labels.masked_fill(missing, 1.0), weights.masked_fill(missing, 0.0)


def value_dtype(scores: Tensor) -> torch.dtype:
    """Return the type of the loss, and of derivatives that are not yet rounded to the scores'."""
    return torch.float64 if scores.dtype is torch.float64 else torch.float32


def clamped(derivatives: Sequence[Tensor | None], scores: Tensor) -> Derivatives:
    """Clamp grad and hess to the range of the scores' type; convert all to the type of the loss.

    `derivatives` are grad, hess and hvp.
    """
    limit, dtype = torch.finfo(scores.dtype).max, value_dtype(scores)
    grad, hess, hvp = derivatives
    return (
        None if grad is None else grad.clamp(-limit, limit).to(dtype),
        None if hess is None else hess.clamp(-limit, limit).to(dtype),
        None if hvp is None else hvp.to(dtype),
    )


def batch_from(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    order: Order = (None, None),
    pairs: str = "binary",
) -> batches.Batch:
    """Return checked (n,) tensors on the CPU as the `Batch` of everypair's NumPy layer."""
    batch = batches.Batch()
    wide = scores if scores.dtype in WIDE_DTYPES else scores.float()
    batch.scores = array = wide.contiguous().numpy(force=True)
    batch.dtype, batch.shape = array.dtype, array.shape
    batch.labels = array_from(labels, LABEL_DTYPES[labels.dtype])
    batch.weights = None if weights is None else array_from(weights, torch.float64)
    batch.order, batch.offsets = order
    batch.ranked = None
    if pairs == "ordered":
        batches.rank(batch, ranked.target_from(batch.labels), None, "harrell")
    elif pairs != "binary":
        censoring = "uno" if pairs == "uno" else "harrell"
        batches.rank(batch, *survival.survival_from(batch.labels), censoring)
    return batch


def array_from(tensor: Tensor, dtype: torch.dtype | None = None) -> NDArray[Any]:
    """Return a contiguous array of this type; it shares the tensor's memory if possible."""
    if dtype is not None and tensor.dtype is not dtype:
        tensor = tensor.to(dtype)
    array: NDArray[Any] = tensor.contiguous().numpy(force=True)
    return array


def each_row(tensor: Tensor | None, shape: torch.Size) -> list[Any]:
    """Return the (n,) rows of a tensor that broadcasts to this shape (..., n)."""
    if tensor is None:
        return [None] * shape[:-1].numel()
    if tensor.stride(-1) != 1:
        # One copy of all rows: copied row by row, every cache line would be read many times.
        tensor = tensor.contiguous()
    return list(tensor.detach().expand(shape).reshape(-1, shape[-1]).unbind())


def _as_rows(tensor: Tensor) -> Tensor:
    if tensor.dim() == 1:
        return tensor
    return tensor.squeeze(1) if tensor.shape[1] == 1 else tensor.t()


def check_rows(
    tensor: Tensor, name: str, scores_shape: torch.Size, n_tasks: int, device: torch.device
) -> None:
    """Check type, device and shape of labels, weights or groups."""
    if not isinstance(tensor, Tensor) or tensor.layout is not _STRIDED:
        _raise_not_dense(tensor, name)
    if tensor.device != device:
        _raise_device(name, tensor.device, device)
    n = scores_shape[0]
    shape = tensor.shape
    if len(shape) == 1 and shape[0] == n:
        return
    if len(shape) == 2 and shape[0] == n and shape[1] in (1, n_tasks):
        return
    shapes = [f"({n},)"] if n_tasks == 1 or name == "weights" else []
    shapes += [f"({n}, {n_tasks})"] if n_tasks > 1 else []
    advice = "Check that both come from the same rows and tasks."
    if n == 1 and shape == (n_tasks,):
        advice = f"Scores of shape (1, {n_tasks}) are one row of {n_tasks} tasks: pass scores[0]."
    raise ValueError(
        f"{name} must have the shape {' or '.join(shapes)} for scores of shape "
        f"{tuple(scores_shape)}; got {tuple(shape)}. {advice}"
    )


def check_groups(groups: Tensor, name: str, scores_shape: torch.Size, device: torch.device) -> None:
    """Check type, device and shape of groups."""
    check_rows(groups, name, scores_shape, 1, device)
    if groups.is_floating_point() or groups.is_complex():
        messages.raise_group_dtype(groups.dtype, "torch")


def _check_floats(scores: Tensor, name: str) -> None:
    if not isinstance(scores, Tensor) or scores.layout is not _STRIDED:
        _raise_not_dense(scores, name)
    if scores.dtype not in _FLOATS:
        is_long = scores.dtype in (torch.int32, torch.int64)  # float32 would round them
        messages.raise_not_floats(scores.dtype, f"{name}.{'double' if is_long else 'float'}()")


def _raise_not_constant(name: str) -> NoReturn:
    raise ValueError(
        f"{name} must not require a gradient, because the loss is differentiated in the scores "
        f"only; got {name} that do. Pass {name}.detach()."
    )


def _raise_device(name: str, tensor_device: torch.device, device: torch.device) -> NoReturn:
    raise ValueError(
        f"{name} must be on the device of the scores; got {name} on {tensor_device} and scores on "
        f"{device}. Pass {name}.to(scores.device)."
    )


def _raise_not_dense(value: object, name: str) -> NoReturn:
    if not isinstance(value, Tensor):
        raise ValueError(
            f"{name} must be a tensor; got {type(value).__name__}. Pass torch.as_tensor({name}), "
            "or call everypair.pair_loss, which takes arrays and lists."
        )
    raise ValueError(
        f"{name} must be a dense tensor; got the layout {value.layout}. Pass {name}.to_dense()."
    )
