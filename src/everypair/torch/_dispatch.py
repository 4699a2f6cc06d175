"""Which backend computes a batch, and what it is asked: all paths of the torch adapter end here.

There are three backends: the CPU kernel (`_cpu`), Triton kernels on NVIDIA GPUs (`triton/`), and
torch operations on every other device and for whatever Triton does not handle. `choose_backend`
decides; nothing else does.

A batch is `scores` of the shape (..., n): rows in the last dimension, and one value for each entry
of the others. Labels, weights, groups and vectors broadcast to that shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from everypair.surrogates import PairTerm
from everypair.torch import _arrays, _compat, _cpu, _inputs
from everypair.torch._terms import flatten, unflatten

Counter = Callable[[torch.device], Tensor]
Backend = Literal["cpu", "triton", "operations"]

_MOST_SCALED = 1 << 30  # indices of more entries do not fit into 32 bits
_forced: Backend | None = None  # for all threads, because backward may run in another one


Options = tuple[tuple[PairTerm, ...], bool, bool, bool, str]
"""How a batch is evaluated: terms, mean, check, missing and pairs.

`terms` are those of the surrogate, `mean` divides by the total pair weight, `check` raises if a
value is not allowed, and `missing` leaves out the rows whose labels are NaN. `pairs` says what
labels are: "binary", "ordered", or times that are negative where censored, "survival" or "uno". A
plain tuple, because a class would add as much time to a small batch as the checks of its tensors.
"""


class Result(NamedTuple):
    """The fields of `everypair.kernel.request.Result` as tensors; None where not asked for.

    Attributes
    ----------
    value : (...) float64 for float64 scores, else float32
    pair_weight : (...) float64 (float32 on MPS) or None
        The total weight of all pairs. None if a counter was given and has been advanced.
    grad, hess, hvp : (..., n) of the type of `value`, or None
        Not rounded to the scores' type, so that they can be scaled before.
    """

    value: Tensor
    pair_weight: Tensor | None
    grad: Tensor | None
    hess: Tensor | None
    hvp: Tensor | None


def flat_options(options: Options) -> tuple[list[float], bool, bool, bool, str]:
    """Return the options as registered operators take them, with terms as floats."""
    terms, mean, check, missing, pairs = options
    return list(flatten(terms)), mean, check, missing, pairs


def options_from_flat(terms: Sequence[float], *others: Any) -> Options:
    """Undo `flat_options`."""
    return unflatten(tuple(terms)), *others


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


def loss_and_grad(
    scores: Tensor, data: _inputs.Data, options: Options, counter: Counter | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return value, pair weight and gradient of scores (n[, tasks]).

    `data` are labels, weights and groups, and all tensors are as the caller gave them. The gradient
    has the shape of the scores. The pair weight is None if the backend has advanced `counter`.
    """
    rows = _inputs.in_rows(scores.detach(), *data)
    value, pair_weight, rows_grad = (
        _replayed(*rows, options, counter)
        or evaluate(*rows, options, grad=True, counter=counter)[:3]
    )
    return value, pair_weight, _inputs.in_columns(cast("Tensor", rows_grad), scores)


def _replayed(
    scores: Tensor, labels: Tensor, weights: Tensor | None, groups: Tensor | None,
    options: Options, counter: Counter | None,
) -> tuple[Tensor, None, Tensor] | None:  # fmt: skip
    """Return value, no pair weight, and gradient by the launches of an earlier batch on a GPU."""
    terms, mean, check, missing, pairs = options
    if not (
        weights is None
        and groups is None
        and pairs == "binary"
        and _forced is None
        and scores.dim() == 1
        and scores.dtype in _inputs.WIDE_DTYPES
        and not check
        and choose_backend(scores, terms=terms) == "triton"
        and scores.device.index == torch.cuda.current_device()
    ):
        return None
    found: tuple[Tensor, None, Tensor] | None = _triton("cached_launch").loss_and_grad(
        scores, labels, terms, mean, missing,
        None if counter is None else counter(scores.device),
    )  # fmt: skip
    return found


def evaluate(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    groups: Tensor | None,
    options: Options,
    *,
    grad: bool = False,
    hess: bool = False,
    vector: Tensor | None = None,
    counter: Counter | None = None,
) -> Result:
    """Return the loss of every batch and the derivatives that are asked for.

    These are the gradient, the diagonal of the Hessian, and the Hessian times `vector`, which is
    asked for alone. `counter` returns the tensor on a device to which a single batch adds 1 if it
    has no pair. Only Triton uses it, and returns no pair weight then.
    """
    terms, mean, check, missing, pairs = options
    backend = choose_backend(scores, groups, terms, pairs, vector)
    if backend == "cpu":
        if missing and bool(labels.isnan().any()):
            labels, weights = _inputs.without_missing(labels, weights)
        return Result(
            *_cpu.evaluate(
                scores, labels, weights, groups, vector, terms, pairs,
                mean=mean, grad=grad, hess=hess, check=check,
            )
        )  # fmt: skip
    if check:
        known = labels.nan_to_num(nan=1.0) if missing else labels
        _inputs.check_values(scores, known, weights, pairs)
    if missing and (backend != "triton" or pairs != "binary"):
        labels, weights = _inputs.without_missing(labels, weights)
    shape = scores.shape
    weights, vector = (None if t is None else t.expand(shape) for t in (weights, vector))
    if backend == "triton" and pairs == "binary":
        with _on_device_of(scores, backend):
            value, pair_weight, grad_out, hess_out, hvp_out = _triton("plans").evaluate(
                scores, labels.expand(shape), weights, vector, terms,
                mean=mean, grad=grad, hess=hess, missing=missing,
                one_class=None if counter is None else counter(scores.device),
            )  # fmt: skip
        if scores.dtype in _inputs.WIDE_DTYPES:
            return Result(value, pair_weight, grad_out, hess_out, hvp_out)
    else:
        groups = None if groups is None else groups.long().expand(shape)
        asked = {"mean": mean, "grad": grad, "hess": hess}
        if pairs == "binary":
            positive = (labels > 0).expand(shape)
            found = _arrays.evaluate(scores, positive, weights, groups, vector, terms, **asked)
        else:
            targets = labels.to(_inputs.LABEL_DTYPES[labels.dtype]).expand(shape)
            plan = _triton("ordered").by_levels if backend == "triton" else None
            with _on_device_of(scores, backend):
                found = _arrays.evaluate_ranked(
                    scores, targets, weights, groups, vector, terms, pairs, plan=plan, **asked
                )
        value, pair_weight, grad_out, hess_out, hvp_out = found
    derivatives = _inputs.clamped((grad_out, hess_out, hvp_out), scores)
    return Result(value.to(_inputs.value_dtype(scores)), pair_weight, *derivatives)


def _on_device_of(scores: Tensor, backend: Backend) -> AbstractContextManager[Any]:
    """Make the device of the scores the current one, on which Triton launches."""
    if backend != "triton" or not scores.is_cuda:
        return nullcontext()
    elsewhere = scores.device.index != torch.cuda.current_device()
    return torch.cuda.device(scores.device) if elsewhere else nullcontext()


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
