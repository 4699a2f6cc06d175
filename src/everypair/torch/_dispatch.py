"""Where a loss is computed: by kernels on CPU and CUDA, by torch operations elsewhere.

A batch is `scores` of the shape (..., n): rows in the last dimension, and one value for each entry
of the others. Labels, weights, groups and vectors broadcast to that shape.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from everypair.torch import _arrays, _cpu
from everypair.torch._inputs import value_dtype, without_missing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from torch import Tensor

    from everypair.surrogates import KnotTerm

__all__ = ["Answer", "Question", "evaluate", "forced", "loss_and_grad", "scale_in_place"]

Way = Literal["kernel", "triton", "operations"]

_MOST_SCALED = 1 << 30  # places of more would not fit in 32 bits
_WIDE = frozenset((torch.float32, torch.float64))
_forced: Way | None = None  # of all threads, because a backward may run in another one


class Question(NamedTuple):
    """What is asked about a batch, besides its data."""

    terms: tuple[KnotTerm, ...]
    mean: bool
    check: bool  # a value that is not allowed raises
    missing: bool  # a label that is NaN leaves its row out
    one_class: Tensor | None = None  # counts batches of one class, where a kernel can

    def uncounted(self) -> Question:
        """Return it without the counter, for whoever asks once more or may be asked to."""
        return self if self.one_class is None else self._replace(one_class=None)

    def flat(self) -> tuple[list[float], bool, bool, bool]:
        """Return it as operators of `torch.library` take it: five numbers for each term."""
        return [float(number) for term in self.terms for number in term], *self[1:4]


class Answer(NamedTuple):
    """What was computed; None where it was not asked.

    `values` and `pair_weight` have the shape of the batch without its rows; there is no pair weight
    where a batch of one class has been counted already. Arrays are float32 where scores are
    narrower, so that a factor can be applied before they are rounded.
    """

    values: Tensor
    pair_weight: Tensor | None
    grad: Tensor | None
    hvp: Tensor | None
    hess: Tensor | None


@contextmanager
def forced(way: Way) -> Iterator[None]:
    """Compute this way inside the block, wherever the tensors are."""
    global _forced
    before, _forced = _forced, way
    try:
        yield
    finally:
        _forced = before


def loss_and_grad(
    scores: Tensor, labels: Tensor, weights: Tensor | None, question: Question
) -> tuple[Tensor, float | None, Tensor] | None:
    """Return value, pair weight and gradient where that takes no preparation, else None.

    On a GPU there is no pair weight: a batch of one class has been counted, if anyone asked.
    """
    if _forced is not None:
        return None
    terms, mean, check, missing, one_class = question
    if scores.is_cpu:
        return _cpu.loss_and_grad(scores, labels, weights, terms, mean)
    if (
        weights is None
        and scores.dim() == 1
        and scores.dtype in _WIDE
        and not check
        and _way(scores.device.type) == "triton"
        and scores.device.index == torch.cuda.current_device()
    ):
        found: tuple[Tensor, None, Tensor] | None = _triton_quick().loss_and_grad(
            scores, labels, terms, mean, missing, one_class
        )
        return found
    return None


def scale_in_place(grad: Tensor, factor: Tensor) -> Tensor | None:
    """Multiply a gradient that nobody else holds by a number, or return None and leave it alone."""
    if (
        type(factor) is torch.Tensor
        and factor.is_cuda
        and grad.numel() <= _MOST_SCALED
        and factor.dim() == 0
        and _way("cuda") == "triton"
        and not torch._C._functorch.is_legacy_batchedtensor(factor)
        and not torch._C._are_functorch_transforms_active()
        and not torch.compiler.is_compiling()
        and grad.device.index == torch.cuda.current_device()
    ):
        scaled: Tensor = _triton_scale().scale_in_place(grad, factor)
        return scaled
    return None


def evaluate(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    groups: Tensor | None,
    question: Question,
    *,
    grad: bool = False,
    vector: Tensor | None = None,
    hess: bool = False,
) -> Answer:
    """Return the loss of every batch and, as asked, its derivatives.

    These are the gradient, the Hessian times `vector`, and the diagonal of the Hessian.
    """
    terms, mean, check, missing, one_class = question
    way = _forced or _way(scores.device.type)
    on_triton = way == "triton" and groups is None and scores.dim() <= 2
    if missing and not on_triton and (way != "kernel" or bool(labels.isnan().any())):
        labels, weights = without_missing(labels, weights)
    if way == "kernel":
        evaluate_on_cpu = _cpu.evaluate if scores.dim() == 1 else _cpu.evaluate_columns
        return Answer(
            *evaluate_on_cpu(
                scores, labels, weights, groups, vector, terms,
                mean=mean, grad=grad, hess=hess, check=check,
            )
        )  # fmt: skip
    if check:
        given = labels.nan_to_num(nan=1.0) if missing and on_triton else labels
        _cpu.check_values(scores, given, weights)
    shape = scores.shape
    if on_triton:
        with _device_of(scores):
            found = _triton().evaluate(
                scores,
                labels if labels.shape == shape else labels.expand(shape),
                None if weights is None else weights.expand(shape),
                None if vector is None else vector.expand(shape),
                terms,
                mean=mean,
                grad=grad,
                hess=hess,
                missing=missing,
                one_class=one_class,
            )
        if found is not None:
            values, pair_weight, gradient, product, curvature = found
            if gradient is not None and scores.dtype is not gradient.dtype:
                gradient = _cpu.finite(gradient, scores.dtype)
            if curvature is not None and scores.dtype is not curvature.dtype:
                curvature = _cpu.finite(curvature, scores.dtype)
            return Answer(values, pair_weight, gradient, product, curvature)
        if missing:
            labels, weights = without_missing(labels, weights)
    values, pair_weight, gradient, curvature, product = _arrays.evaluate(
        scores,
        (labels > 0).expand(shape),
        None if weights is None else weights.expand(shape),
        None if groups is None else groups.long().expand(shape),
        None if vector is None else vector.expand(shape),
        terms,
        mean=mean,
        grad=grad,
        hess=hess,
    )
    dtype = value_dtype(scores)
    return Answer(
        values.to(dtype),
        pair_weight,
        None if gradient is None else _cpu.finite(gradient, scores.dtype).to(dtype),
        None if product is None else product.to(dtype),
        None if curvature is None else _cpu.finite(curvature, scores.dtype).to(dtype),
    )


@lru_cache(maxsize=8)
def _way(device_type: str) -> Way:
    if device_type == "cpu":
        return "kernel"
    if device_type == "cuda" and torch.version.cuda is not None:
        try:
            _triton()
            return "triton"
        except ImportError:  # Triton comes with torch on Linux only
            pass
    return "operations"


@lru_cache(maxsize=1)
def _triton() -> ModuleType:
    from everypair.torch.triton import plans as module

    return module


@lru_cache(maxsize=1)
def _triton_quick() -> ModuleType:
    from everypair.torch.triton import cached_launch as module

    return module


@lru_cache(maxsize=1)
def _triton_scale() -> ModuleType:
    from everypair.torch.triton import scale as module

    return module


def _device_of(scores: Tensor) -> AbstractContextManager[object]:
    # Triton launches on the current device.
    if scores.is_cuda and scores.device.index != torch.cuda.current_device():
        return torch.cuda.device(scores.device)
    return nullcontext()
