"""The library's kernels on the memory of tensors: no copy where they are contiguous floats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from everypair import _dispatch, _groups, _inputs, _threads
from everypair.torch._inputs import LABELS, value_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from everypair.surrogates import KnotTerm

    Runs = tuple[NDArray[np.intp] | None, NDArray[np.int64] | None]
    Tensors = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]

__all__ = ["check_values", "evaluate", "evaluate_columns", "finite", "loss_and_grad"]

_SCORES = frozenset((torch.float32, torch.float64))
_ONE_RUN: Runs = (None, None)
# Gradients cannot leave the range of float32 or wider types while the loss is smaller than this.
_ORDINARY_LOSS = 1e30
# From here on NumPy asks the system for huge pages, and saves a third of the time that fresh memory
# takes; below, torch's own memory is made and freed sooner.
_HUGE_PAGES = 1 << 20


def loss_and_grad(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    terms: tuple[KnotTerm, ...],
    mean: bool,
) -> tuple[Tensor, float, Tensor] | None:
    """Return value, pair weight and gradient of a batch that needs no preparation, else None.

    Small batches spend most of their time around the kernel: this is the shortest way to it.
    """
    dtype = scores.dtype
    if (
        scores.dim() != 1
        or dtype not in _SCORES
        or LABELS[labels.dtype] is not labels.dtype
        or not (scores.is_contiguous() and labels.is_contiguous())
        or not _dispatch._uses_native()
    ):
        return None
    mass = None if weights is None else _array(weights, torch.float64)
    array = scores.numpy(force=True)
    if array.size < _HUGE_PAGES:
        grad = torch.empty_like(scores, requires_grad=False)
    else:
        grad = torch.from_numpy(np.empty_like(array))
    status, value, pair_weight = _dispatch._native.evaluate(  # type: ignore[attr-defined]
        array, labels.numpy(force=True), mass, None, None,
        terms, mean, _threads.get_num_threads(), grad.numpy(), None, None,
    )  # fmt: skip
    if status or not -_ORDINARY_LOSS < value < _ORDINARY_LOSS:
        return None
    return torch.scalar_tensor(value, dtype=dtype), pair_weight, grad


def evaluate(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    groups: Tensor | None,
    vector: Tensor | None,
    terms: tuple[KnotTerm, ...],
    *,
    mean: bool,
    grad: bool,
    hess: bool,
    check: bool,
    runs: Runs | None = None,
) -> Tensors:
    """Return value, pair weight and derivatives of one batch of shape (n,).

    The derivatives are the gradient, the Hessian times vector and the diagonal of the Hessian.
    """
    if runs is None:
        runs = _ONE_RUN if groups is None else _groups.runs(_array(groups))
    batch = _batch(scores, labels, weights, runs)
    try:
        value, pair_weight, gradient, diagonal, product = _dispatch.evaluate(
            batch,
            terms,
            mean,
            grad=grad,
            hess=hess,
            vector=None if vector is None else _array(vector, torch.float64),
        )
    except ValueError:
        if check or bool(scores.isfinite().all()):
            raise
        nothing = torch.full_like(scores, torch.nan, dtype=value_dtype(scores))
        return (
            nothing[0],
            nothing[0].double(),
            nothing if grad else None,
            None if vector is None else nothing,
            nothing if hess else None,
        )
    dtype = value_dtype(scores)
    if not -_ORDINARY_LOSS < value < _ORDINARY_LOSS and dtype is torch.float32:
        # Inside the kernel, single precision may overflow on the way to a gradient that it holds.
        loss, mass, slopes, along, curvature = evaluate(
            scores.double(), labels, weights, None, vector, terms,
            mean=mean, grad=grad, hess=hess, check=check, runs=runs,
        )  # fmt: skip
        return (
            loss.to(dtype),
            mass,
            None if slopes is None else finite(slopes, scores.dtype).to(dtype),
            None if along is None else along.to(dtype),
            None if curvature is None else finite(curvature, scores.dtype).to(dtype),
        )
    slopes = None if gradient is None else torch.from_numpy(gradient)
    curvature = None if diagonal is None else torch.from_numpy(diagonal)
    if scores.dtype is not dtype:
        slopes = None if slopes is None else finite(slopes, scores.dtype)
        curvature = None if curvature is None else finite(curvature, scores.dtype)
    return (
        torch.scalar_tensor(value, dtype=dtype),
        torch.scalar_tensor(pair_weight, dtype=torch.float64),
        slopes,
        None if product is None else torch.from_numpy(product),
        curvature,
    )


def evaluate_columns(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    groups: Tensor | None,
    vector: Tensor | None,
    terms: tuple[KnotTerm, ...],
    *,
    mean: bool,
    grad: bool,
    hess: bool,
    check: bool,
) -> Tensors:
    """Do the same for every batch of a tensor of shape (..., n), one after the other."""
    shape = scores.shape
    runs = None
    if groups is not None and groups.dim() == 1:  # one grouping of rows, found once
        runs, groups = _groups.runs(_array(groups)), None
    rows = zip(
        *(_rows(tensor, shape) for tensor in (scores, labels, weights, groups, vector)),
        strict=True,
    )
    answers: list[Tensors] = []
    quick = grad and vector is None and groups is None and runs is None and not hess
    for k, (x, y, w, g, z) in enumerate(rows):
        found = loss_and_grad(x, y, w, terms, mean) if quick else None
        if found is not None:
            loss, mass, slope = found
            weight = torch.scalar_tensor(mass, dtype=torch.float64)
            answers.append((loss, weight, slope, None, None))
            continue
        try:
            answers.append(
                evaluate(
                    x, y, w, g, z, terms,
                    mean=mean, grad=grad, hess=hess, check=check, runs=runs,
                )
            )  # fmt: skip
        except ValueError as error:
            raise ValueError(f"in column {k}, {error}") from None
    values, pair_weights, *arrays = (
        None if parts[0] is None else torch.stack(cast("list[Tensor]", parts))
        for parts in map(list, zip(*answers, strict=True))
    )
    slopes, products, curvatures = (None if a is None else a.reshape(shape) for a in arrays)
    return (
        cast("Tensor", values).reshape(shape[:-1]),
        cast("Tensor", pair_weights).reshape(shape[:-1]),
        slopes,
        products,
        curvatures,
    )


def check_values(scores: Tensor, labels: Tensor, weights: Tensor | None) -> None:
    """Raise for bad values of tensors on any device, which is waited for."""
    sound = scores.isfinite().all() & (
        ((labels == 0) | (labels == 1)).all() | ((labels == -1) | (labels == 1)).all()
    )
    if weights is not None:
        sound = sound & ((weights >= 0.0) & weights.isfinite()).all()
    if bool(sound):
        return
    shape = scores.shape
    rows = [_rows(None if t is None else t.cpu(), shape) for t in (scores, labels, weights)]
    for k, (row_scores, row_labels, row_weights) in enumerate(zip(*rows, strict=True)):
        try:
            _inputs.positives(_batch(row_scores, row_labels, row_weights, _ONE_RUN))
        except ValueError as error:
            if len(shape) == 1:
                raise
            raise ValueError(f"in column {k}, {error}") from None


def finite(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a gradient that a cast to this type leaves finite.

    A score that is too far off is then pulled back as hard as its type can say.
    """
    limit = torch.finfo(dtype).max
    return gradient.clamp(-limit, limit)


def _batch(scores: Tensor, labels: Tensor, weights: Tensor | None, runs: Runs) -> _inputs.Batch:
    batch = _inputs.Batch()
    if scores.dtype not in _SCORES:
        scores = scores.float()
    batch.scores = array = _array(scores)
    batch.dtype = array.dtype
    batch.shape = array.shape
    batch.labels = _array(labels, LABELS[labels.dtype])
    batch.weights = None if weights is None else _array(weights, torch.float64)
    batch.order, batch.offsets = runs
    return batch


def _array(tensor: Tensor, dtype: torch.dtype | None = None) -> NDArray[Any]:
    """Return a contiguous array of this type, of the tensor's own memory where that is possible."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if dtype is not None and tensor.dtype is not dtype:
        tensor = tensor.to(dtype)
    if not tensor.is_contiguous() or tensor.is_neg():
        tensor = tensor.resolve_neg().contiguous()
    array: NDArray[Any] = tensor.numpy()
    return array


def _rows(tensor: Tensor | None, shape: torch.Size) -> list[Any]:
    """Return the rows of a tensor that is expanded to this shape."""
    if tensor is None:
        return [None] * shape[:-1].numel()
    if tensor.stride(-1) != 1:
        tensor = (
            tensor.contiguous()
        )  # at once: column by column, every cache line would be read often
    return list(tensor.detach().expand(shape).reshape(-1, shape[-1]).unbind())
