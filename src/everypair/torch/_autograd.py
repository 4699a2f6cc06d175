"""How the loss is differentiated: `loss_values` chooses between two implementations.

- `_Eager`, for ordinary tensors: computes the gradient together with the loss, and returns it in
  the first backward.
- `_operators.pair_values`, for everything else: `torch.compile`, `torch.export`, `torch.func`,
  `torch.vmap`, forward mode, and the second derivatives of `_Eager`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from everypair.torch import _dispatch
from everypair.torch._compat import is_transformed
from everypair.torch._dispatch import Counter, Options
from everypair.torch._inputs import Data, score_rows
from everypair.torch._operators import needs_operator, pair_values, scaled


def loss_values(
    scores: Tensor, data: Data, options: Options, counter: Counter | None
) -> tuple[Tensor, Tensor | None]:
    """Return the loss and the pair weight of every task, () or (tasks,), of scores (n[, tasks]).

    `data` is that of `check_data`, and `counter` that of `_dispatch.evaluate`, for a single task
    only. The pair weight is None if there is one task and `counter` has counted it.
    """
    if needs_operator(scores) or is_transformed():
        return pair_values(score_rows(scores), *data, *options.flat())[:2]
    if scores.requires_grad and torch.is_grad_enabled():
        # The pair weight is returned through a list: a second output of the function would cost as
        # much as the kernel does for a small batch.
        pair_weight: list[Tensor | None] = []
        return _eager(scores, data, options, counter, pair_weight), pair_weight[0]
    return _dispatch.evaluate(score_rows(scores), *data, options, counter=counter)[:2]


class _Eager(Function):
    """The loss of ordinary tensors, with the least overhead that torch allows."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, data: Data, options: Options, counter: Counter | None,
        pair_weight: list[Tensor | None],
    ) -> Tensor:  # fmt: skip
        rows = score_rows(scores)
        value, weight, grad = _dispatch.loss_and_grad(rows, data, options, counter)
        pair_weight.append(weight)
        ctx.save_for_backward(scores, *data)
        ctx.options = options
        ctx.dtype = scores.dtype
        ctx.has_columns = rows is not scores
        ctx.held = [grad]
        return value

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor, None, None, None, None]:
        grad = _rows_grad(ctx, factor)
        if ctx.has_columns:
            grad = grad.unsqueeze(1) if grad.dim() == 1 else grad.t()
        return grad, None, None, None, None


# `Function.apply` would check for transforms a second time before it calls this method of its base.
_eager = cast("Callable[..., Tensor]", super(Function, _Eager).apply)


def _rows_grad(ctx: Any, factor: Tensor) -> Tensor:
    """Return the gradient with rows in the last dimension, times `factor`."""
    held = ctx.held
    if held and not torch.is_grad_enabled():
        if held[0].dtype is ctx.dtype:
            # Without a reference of our own, torch need not copy the gradient.
            if factor.is_cpu:
                if _is_one(factor):
                    return cast("Tensor", held.pop())
            elif (found := _dispatch.scale_in_place(held[0], factor)) is not None:
                held.clear()
                return found
        return scaled(held[0], factor, ctx.dtype)
    scores, *data = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: the gradient will be differentiated again
        grad = pair_values(score_rows(scores), *data, *ctx.options.flat())[2]
    else:  # an earlier backward has returned the gradient
        grad = _dispatch.loss_and_grad(score_rows(scores), tuple(data), ctx.options, None)[2]
    return scaled(grad, factor, ctx.dtype)


def _is_one(factor: Tensor) -> bool:
    """Return whether a factor on the CPU is known to be one."""
    if factor.dim() or torch.compiler.is_compiling():
        return False
    try:
        return factor.item() == 1.0
    except RuntimeError:  # a batch of factors has no single value
        return False
