"""How the loss is differentiated: `loss_values` chooses between two implementations.

- `_Eager`, for ordinary tensors: computes the gradient together with the loss, and returns it in
  the first backward. `direct_loss` is a shorter path to it.
- `_operators.pair_values`, for everything else: `torch.compile`, `torch.export`, `torch.func`,
  `torch.vmap`, forward mode, and the second derivatives of `_Eager`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from everypair.surrogates import PairTerm
from everypair.torch import _cpu, _dispatch
from everypair.torch._compat import skip_backward_wrapper
from everypair.torch._dispatch import Counter, Options, flat_options
from everypair.torch._inputs import Data, check_data, in_columns, in_rows
from everypair.torch._operators import PLAIN_TENSORS, is_ordinary, pair_values


def direct_loss(
    scores: Tensor,
    labels: Any,
    weights: Tensor | None,
    terms: tuple[PairTerm, ...],
    mean: bool,
    counter: Counter | None,
) -> Tensor | None:
    """Return the loss of a batch of binary pairs if the CPU kernel can read it as it is, else None.

    Most batches in training are of this kind: one task on the CPU in contiguous tensors of common
    types, whose gradient is needed. If they have few rows, Python and torch take longer than the
    kernel, so this function calls as little as possible in between. Nothing was checked before.
    If it returns None, `check_data` and `loss_values` do the same for all batches, and raise the
    errors.
    """
    if (
        not is_ordinary(scores)
        or not (scores.is_cpu and scores.requires_grad and torch.is_grad_enabled())
        or type(labels) not in PLAIN_TENSORS
        or labels.requires_grad
        or _dispatch.choose_backend(scores) != "cpu"
    ):
        return None
    if weights is not None:
        check_data(scores, labels, weights)
    found = _cpu.loss_and_grad(scores, labels, weights, terms, mean)
    if found is None:
        return None
    value, pair_weight, grad = found
    if pair_weight == 0.0 and counter is not None:
        counter(scores.device).add_(1)
    options = terms, mean, True, False, "binary"  # the values are good, and no label is missing
    return _eager(scores, (value, grad, (labels, weights, None), options))


def loss_values(
    scores: Tensor, data: Data, options: Options, counter: Counter | None
) -> tuple[Tensor, Tensor | None]:
    """Return the loss and the pair weight of every task, () or (tasks,), of scores (n[, tasks]).

    `data` are labels, weights and groups after `check_data`, and `counter` is that of
    `_dispatch.evaluate`, for a single task only. The pair weight is None if there is one task and
    `counter` has counted it.
    """
    if not is_ordinary(scores):
        return pair_values(*in_rows(scores, *data), *flat_options(options))[:2]
    if not (scores.requires_grad and torch.is_grad_enabled()):
        return _dispatch.evaluate(*in_rows(scores, *data), options, counter=counter)[:2]
    value, pair_weight, grad = _dispatch.loss_and_grad(scores, data, options, counter)
    return _eager(scores, (value, grad, data, options)), pair_weight


class _Eager(Function):
    """Record the loss of ordinary tensors, and the gradient that was computed with it."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, found: tuple[Tensor, Tensor, Data, Options]) -> Tensor:
        value, grad, data, ctx.options = found
        ctx.save_for_backward(scores, *data)
        ctx.held = [grad]
        return value

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor, None]:
        # The engine rounds the product to the type of the scores.
        held = ctx.held
        if not held or torch.is_grad_enabled():
            return _grad_again(ctx, factor), None
        # Without a reference of our own, torch need not copy the gradient.
        if _is_one(factor) or _dispatch.scale_in_place(held[0], factor):
            return held.pop(), None
        return held[0] * factor, None


skip_backward_wrapper(_Eager)
# `Function.apply` would check for transforms a second time before it calls this method of its base.
_eager = cast("Callable[..., Tensor]", super(Function, _Eager).apply)


def _grad_again(ctx: Any, factor: Tensor) -> Tensor:
    """Compute the gradient times `factor`, after another backward or for a second derivative."""
    scores, *data = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: the gradient will be differentiated again
        grad = pair_values(*in_rows(scores, *data), *flat_options(ctx.options))[2]
        return in_columns(grad, scores) * factor
    return _dispatch.loss_and_grad(scores, tuple(data), ctx.options, None)[2] * factor


def _is_one(factor: Tensor) -> bool:
    """Return whether a factor is known to be one, without waiting for a device."""
    if not factor.is_cpu or factor.dim() or torch.compiler.is_compiling():
        return False
    try:
        return factor.item() == 1.0
    except RuntimeError:  # a batch of factors has no single value
        return False
