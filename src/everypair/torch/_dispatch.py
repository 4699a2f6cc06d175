"""Which backend computes a batch, and what it is asked: all paths of the torch adapter end here.

There are three backends: the CPU kernel, Triton kernels on NVIDIA GPUs (`triton/`), and torch
operations (`_arrays`) on every other device and for whatever Triton does not handle.
`choose_backend` decides; nothing else does. The CPU kernel reads contiguous float32 and float64
tensors without a copy.

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

from everypair.inputs.groups import group_runs
from everypair.kernel import choose, native
from everypair.kernel.request import Request
from everypair.surrogates import PairTerm
from everypair.torch import _arrays, _compat, _inputs
from everypair.torch._options import LossOptions

Backend = Literal["cpu", "triton", "operations"]

_MOST_SCALED = 1 << 30  # indices of more entries do not fit into 32 bits
# While the loss is smaller than this, no derivative overflows in float32 inside the CPU kernel.
_ORDINARY_LOSS = 1e30
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
    grad: Tensor | None = None
    hess: Tensor | None = None
    hvp: Tensor | None = None


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
    if backend != "triton":
        return backend
    plans, (*tasks, n) = _triton("plans"), scores.shape
    if len(tasks) > 1 or n > plans.MOST_ROWS or math.prod(tasks) > plans.MOST_TASKS:
        return "operations"
    if pairs == "binary":
        is_taken = groups is None and (terms == () or plans.can_take(terms))
    else:
        is_taken = _triton("ordered").takes(scores, terms, vector)
    return "triton" if is_taken else "operations"


def direct_loss_and_grad(
    scores: Tensor, labels: Any, weights: Tensor | None, groups: Any, options: LossOptions
) -> tuple[Tensor, float, Tensor] | None:
    """Return value, pair weight and gradient if the CPU kernel reads a batch as it is, else None.

    Most batches in training are of this kind: binary pairs of one task without groups, on the CPU
    in contiguous tensors of common types. If they have few rows, Python and torch take longer than
    the kernel, so this function calls as little as possible in between. Nothing was checked before:
    the kernel declines what is not allowed. The checks and `evaluate` take all other batches.
    """
    if (
        groups is not None
        or options.pairs != "binary"
        or not scores.is_cpu
        or _forced is not None
        or options.by_task
        or options.rates is not None
        or type(labels) not in _compat.PLAIN_TENSORS
        or labels.requires_grad
    ):
        return None
    if weights is not None:
        _inputs.check_data(scores, labels, weights)
    return _read(scores, labels, weights, options)


def _read(
    scores: Tensor, labels: Tensor, weights: Tensor | None, options: LossOptions
) -> tuple[Tensor, float, Tensor] | None:
    """Let the CPU kernel read tensors itself: asking torch for their properties takes too long.

    It declines all but contiguous tensors of common types, and values that are not allowed.
    Weights are checked, but scores and labels may be any tensors. The gradient has the shape of the
    scores, which is (n,) or (n, 1).
    """
    if not choose.uses_native() or scores.is_neg() or labels.is_neg():
        return None
    w = None if weights is None else _inputs.array_from(weights, torch.float64).reshape(-1)
    wide = scores.dtype is torch.float64
    return native.tensor_sums(scores, labels, w, options.terms, options.mean, wide=wide)


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
    terms, pairs, missing = options.terms, options.pairs, options.missing
    backend = choose_backend(scores, groups, terms, pairs, vector)
    by_plan = backend == "triton" and pairs == "binary"
    if missing and not by_plan and (backend != "cpu" or bool(labels.isnan().any())):
        labels, weights = _inputs.without_missing(labels, weights)
    if backend == "cpu":
        return _by_kernel(scores, labels, weights, groups, vector, options, (grad, hess))
    if options.checks(scores.is_cpu):
        finite_labels = labels.nan_to_num(nan=1.0) if missing else labels
        _inputs.check_values(scores, finite_labels, weights, pairs)
    requested = {"mean": options.mean, "grad": grad, "hess": hess}
    if by_plan:
        one_class = one_class if scores.dim() == 1 else None
        result = _by_plan(
            scores, labels, weights, vector, terms, replay, missing=missing, one_class=one_class,
            **requested,
        )  # fmt: skip
        if scores.dtype in _inputs.WIDE_DTYPES:
            return result
    else:
        labels, weights, groups, vector = _expanded(scores.shape, labels, weights, groups, vector)
        groups = None if groups is None else groups.long()
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


def _by_kernel(
    scores: Tensor, labels: Tensor, weights: Tensor | None, groups: Tensor | None,
    vector: Tensor | None, options: LossOptions, derivatives: tuple[bool, bool],
) -> Result:  # fmt: skip
    """Evaluate the rows of the last dimension one after the other by the CPU kernel.

    With a vector, only the last result is computed; value and pair weight are zero.
    """
    order: _inputs.Order = (None, None)
    if groups is not None and groups.dim() == 1:  # the same groups in every row
        order, groups = group_runs(_inputs.array_from(groups)), None
    if scores.dim() == 1:
        return _row_by_kernel(scores, labels, weights, order, vector, options, derivatives)
    shape = scores.shape
    rows = [_inputs.each_row(t, shape) for t in (scores, labels, weights, groups, vector)]
    results = []
    for k, (x, y, w, g, v) in enumerate(zip(*rows, strict=True)):
        runs = order if g is None else group_runs(_inputs.array_from(g))
        try:
            results.append(_row_by_kernel(x, y, w, runs, v, options, derivatives))
        except ValueError as error:
            raise ValueError(f"in column {k}, {error}") from None
    values, pair_weights, *of_rows = zip(*results, strict=True)
    return Result(
        torch.stack(values).reshape(shape[:-1]),
        torch.tensor(pair_weights, dtype=torch.float64, device="cpu").reshape(shape[:-1]),
        *(None if rows[0] is None else torch.stack(rows).reshape(shape) for rows in of_rows),
    )


def _row_by_kernel(
    scores: Tensor, labels: Tensor, weights: Tensor | None, order: _inputs.Order,
    vector: Tensor | None, options: LossOptions, derivatives: tuple[bool, bool],
) -> Result:  # fmt: skip
    """Do the same for scores of shape (n,); `order` holds the groups as in `Batch`."""
    is_plain = order[1] is None and vector is None and options.pairs == "binary"
    if is_plain and derivatives == (True, False):
        sums = _read(scores, labels, weights, options)
        if sums is not None:
            return Result(*sums)
    dtype = _inputs.value_dtype(scores)
    value = pair_weight = 0.0
    try:
        batch = _inputs.batch_from(scores, labels, weights, order, options.pairs)
        if vector is None:
            request = Request(batch, options.terms, options.mean, *derivatives)
            value, pair_weight, *arrays = choose.pair_sums(request)
        else:  # nothing else is asked for
            v = _inputs.array_from(vector, torch.float64)
            request = Request(batch, options.terms, options.mean, vector=v)
            arrays = [None, None, choose.hessian_product(request)]
    except ValueError:
        if options.check is not False or bool(scores.isfinite().all()):
            raise
        nan = torch.full_like(scores, torch.nan, dtype=dtype)
        requested = (*derivatives, vector is not None)
        return Result(nan[0], math.nan, *(nan if flag else None for flag in requested))
    if dtype is torch.float32 and not -_ORDINARY_LOSS < value < _ORDINARY_LOSS:
        # float32 may overflow inside the kernel although the derivatives fit into it.
        wide = _row_by_kernel(scores.double(), labels, weights, order, vector, options, derivatives)
        return Result(wide.value.to(dtype), wide.pair_weight, *_inputs.clamped(wide[2:], scores))
    results = [None if array is None else torch.from_numpy(array) for array in arrays]
    return Result(
        # On the CPU, whatever the default device of torch is.
        torch.scalar_tensor(value, dtype=dtype, device="cpu"),
        pair_weight,
        *(results if scores.dtype is dtype else _inputs.clamped(results, scores)),
    )


def _by_plan(
    scores: Tensor, labels: Tensor, weights: Tensor | None, vector: Tensor | None,
    terms: tuple[PairTerm, ...], replay: bool, **options: Any,
) -> Result:  # fmt: skip
    """Evaluate binary pairs by Triton, if possible by the launches of an earlier batch."""
    if (
        replay
        and options["grad"]
        and not options["hess"]
        and weights is None
        and vector is None
        and scores.dim() == 1
        and scores.dtype in _inputs.WIDE_DTYPES
        and _forced is None
        and scores.device.index == torch.cuda.current_device()
    ):
        mean, missing, one_class = (options[name] for name in ("mean", "missing", "one_class"))
        result = _triton("cached_launch").loss_and_grad(
            scores, labels, terms, mean, missing, one_class
        )
        if result is not None:
            return Result(*result)
    labels, weights, vector = _expanded(scores.shape, labels, weights, vector)
    with _on_device_of(scores):
        return Result(*_triton("plans").evaluate(scores, labels, weights, vector, terms, **options))


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
