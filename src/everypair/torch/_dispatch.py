"""Which backend computes a batch, and what it is asked: all paths of the torch adapter end here.

There are three backends: the CPU kernel (`_cpu`), Triton kernels on NVIDIA GPUs (`triton/`), and
torch operations on every other device and for whatever Triton does not handle. `choose_backend`
decides; nothing else does.

A batch is `scores` of the shape (..., n): rows in the last dimension, and one value for each entry
of the others. Labels, weights, groups and vectors broadcast to that shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from everypair.surrogates import PairTerm
from everypair.torch import _arrays, _compat, _cpu, _inputs
from everypair.torch._options import LossOptions

Backend = Literal["cpu", "triton", "operations"]

_MOST_SCALED = 1 << 30  # indices of more entries do not fit into 32 bits
_forced: Backend | None = None  # for all threads, because backward may run in another one


class Result(NamedTuple):
    """The fields of `everypair.kernel.request.Result` as tensors; None where not asked for.

    Attributes
    ----------
    value : (...) float64 for float64 scores, else float32
    pair_weight : (...) float64 (float32 on MPS), float or None
        The total weight of all pairs: a float for a single batch on the CPU, None if Triton has
        counted a single batch in `one_class`.
    grad, hess, hvp : (..., n) of the type of `value`, or None
        Not rounded to the scores' type, so that they can be scaled before.
    """

    value: Tensor
    pair_weight: Tensor | float | None
    grad: Tensor | None
    hess: Tensor | None
    hvp: Tensor | None


@contextmanager
def forced(backend: Backend) -> Iterator[None]:
    """Use this backend inside the block, wherever the tensors are, and no cached launches."""
    global _forced
    before, _forced = _forced, backend
    try:
        yield
    finally:
        _forced = before


def choose_backend(
    scores: Tensor,
    groups: Tensor | None = None,
    terms: tuple[PairTerm, ...] = (),
    pairs: str = "binary",
    vector: Tensor | None = None,
) -> Backend:
    """Return the backend that computes a batch, by its device and, for Triton, by its size.

    Triton takes binary pairs without groups, and of those truncated polynomials, and smooth terms
    as `triton.smooth.terms` describes; and other pairs if `triton.ordered.takes` accepts them.
    """
    if _forced is None and scores.is_cpu:  # for speed: reading the device's type takes 1 us
        return "cpu"
    backend = _forced or _backend_on("cuda" if scores.is_cuda else scores.device.type)
    if backend == "triton" and (
        (groups is not None and pairs == "binary")
        or scores.dim() > 2
        or _is_too_large(scores)
        or not (terms == () or _triton_takes(scores, terms, pairs, vector))
    ):
        return "operations"
    return backend


def _triton_takes(
    scores: Tensor, terms: tuple[PairTerm, ...], pairs: str, vector: Tensor | None
) -> bool:
    """Return whether a plan of Triton computes these terms and pairs."""
    if pairs == "binary":
        return bool(_triton("plans").can_take(terms))
    return bool(_triton("ordered").takes(scores, terms, vector))


def direct_loss_and_grad(
    scores: Tensor, labels: Any, weights: Tensor | None, options: LossOptions
) -> tuple[Tensor, float, Tensor] | None:
    """Return value, pair weight and gradient if the CPU kernel reads a batch as it is, else None.

    Most batches in training are of this kind: binary pairs of one task without groups, on the CPU
    in contiguous tensors of common types. If they have few rows, Python and torch take longer than
    the kernel, so this function calls as little as possible in between. Nothing was checked before:
    the kernel declines what is not allowed. The checks and `evaluate` take all other batches.
    """
    if (
        not scores.is_cpu
        or _forced is not None
        or options.by_task
        or options.rates is not None
        or type(labels) not in _compat.PLAIN_TENSORS
        or labels.requires_grad
    ):
        return None
    if weights is not None:
        _inputs.check_data(scores, labels, weights)
    return _cpu.loss_and_grad(scores, labels, weights, options.terms, options.mean)


def evaluate(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    groups: Tensor | None,
    options: LossOptions,
    *,
    grad: bool = False,
    hess: bool = False,
    vector: Tensor | None = None,
    one_class: Tensor | None = None,
    replay: bool = False,
) -> Result:
    """Return the loss of every batch and the derivatives that are asked for.

    These are the gradient, the diagonal of the Hessian, and the Hessian times `vector`, which is
    asked for alone. `one_class` is the tensor to which a single batch adds 1 if it has no pair.
    Only Triton uses it, and returns no pair weight then. With `replay` the pair weight is not read,
    so that Triton may repeat the launches of an earlier batch.
    """
    terms, mean, pairs = options.terms, options.mean, options.pairs
    backend = choose_backend(scores, groups, terms, pairs, vector)
    if backend == "cpu":
        if options.missing and bool(labels.isnan().any()):
            labels, weights = _inputs.without_missing(labels, weights)
        batch = scores, labels, weights, groups, vector
        return Result(*_cpu.evaluate(*batch, options, grad=grad, hess=hess))
    if options.checks(scores.is_cpu):
        known = labels.nan_to_num(nan=1.0) if options.missing else labels
        _inputs.check_values(scores, known, weights, pairs)
    if backend == "triton" and pairs == "binary":
        may_replay = replay and grad and not hess and weights is None and vector is None
        result = _launched(
            scores, labels, weights, vector, options, grad, hess, one_class, may_replay
        )
        if scores.dtype in _inputs.WIDE_DTYPES:
            return result
    else:
        if options.missing:
            labels, weights = _inputs.without_missing(labels, weights)
        shape = scores.shape
        labels, weights, groups, vector = _expanded(shape, labels, weights, groups, vector)
        groups = None if groups is None else groups.long()
        requested = {"mean": mean, "grad": grad, "hess": hess}
        if pairs == "binary":
            sums = _arrays.evaluate(scores, labels > 0, weights, groups, vector, terms, **requested)
        else:
            targets = labels.to(_inputs.LABEL_DTYPES[labels.dtype])
            plan = _triton("ordered").by_levels if backend == "triton" else None
            with _on_device_of(scores):
                sums = _arrays.evaluate_ranked(
                    scores, targets, weights, groups, vector, terms, pairs, plan=plan, **requested
                )
        result = Result(*sums)
    value = result.value.to(_inputs.value_dtype(scores))
    return Result(value, result.pair_weight, *_inputs.clamped(result[2:], scores))


def _launched(
    scores: Tensor, labels: Tensor, weights: Tensor | None, vector: Tensor | None,
    options: LossOptions, grad: bool, hess: bool, one_class: Tensor | None, may_replay: bool,
) -> Result:  # fmt: skip
    """Evaluate binary pairs by Triton, if possible by the launches of an earlier batch."""
    one_class = one_class if scores.dim() == 1 else None
    terms, mean, missing = options.terms, options.mean, options.missing
    if (
        may_replay
        and scores.dim() == 1
        and scores.dtype in _inputs.WIDE_DTYPES
        and _forced is None
        and scores.device.index == torch.cuda.current_device()
    ):
        result = _triton("cached_launch").loss_and_grad(
            scores, labels, terms, mean, missing, one_class
        )
        if result is not None:
            value, _, gradient = result
            return Result(value, None, gradient, None, None)
    labels, weights, vector = _expanded(scores.shape, labels, weights, vector)
    with _on_device_of(scores):
        results = _triton("plans").evaluate(
            scores, labels, weights, vector, terms,
            mean=mean, grad=grad, hess=hess, missing=missing, one_class=one_class,
        )  # fmt: skip
    return Result(*results)


def _expanded(shape: torch.Size, *tensors: Tensor | None) -> tuple[Any, ...]:
    return tuple(None if tensor is None else tensor.expand(shape) for tensor in tensors)


def _on_device_of(scores: Tensor) -> AbstractContextManager[Any]:
    """Make the device of the scores the current one, on which Triton launches."""
    if not scores.is_cuda or scores.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(scores.device)


def scale_in_place(grad: Tensor, factor: Tensor) -> bool:
    """Multiply a gradient in place by a number, or return False and leave it as it is.

    The caller must be the only owner of the gradient.
    """
    if (
        type(factor) is torch.Tensor
        and factor.is_cuda
        and grad.numel() <= _MOST_SCALED
        and factor.dim() == 0
        and choose_backend(grad) == "triton"
        and not _compat.is_legacy_batched(factor)
        and not _compat.is_under_functorch()
        and not torch.compiler.is_compiling()
        and grad.device.index == torch.cuda.current_device()
    ):
        _triton("scale").scale_in_place(grad, factor)
        return True
    return False


def _is_too_large(scores: Tensor) -> bool:
    """Return whether Triton's plans cannot take a batch with so many rows or tasks."""
    plans = _triton("plans")
    if scores.numel() <= min(plans.MOST_ROWS, plans.MOST_TASKS):  # for speed: one task and few rows
        return False
    *tasks, n = scores.shape
    return bool(n > plans.MOST_ROWS or math.prod(tasks) > plans.MOST_TASKS)


@lru_cache(maxsize=8)
def _backend_on(device_type: str) -> Literal["triton", "operations"]:
    """Return the backend of a device other than the CPU."""
    if device_type == "cuda" and torch.version.cuda is not None:
        try:
            _triton("plans")
            return "triton"
        except ImportError:  # torch includes Triton on Linux only, and before 2.8 an old one
            pass
    return "operations"


@lru_cache(maxsize=4)
def _triton(module: str) -> Any:
    """Import a module of `everypair.torch.triton` at its first use."""
    return import_module(f"everypair.torch.triton.{module}")
