"""The one entry into the loss on tensors, and how the loss is differentiated.

`loss_and_pair_weight` chooses between two implementations:

- `_Eager`, for ordinary tensors: computes the gradient together with the loss, and returns it in
  the first backward;
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
from everypair.torch._compat import is_ordinary, skip_backward_wrapper
from everypair.torch._inputs import Data, Labels, checked, in_columns, in_rows, kept_weights
from everypair.torch._operators import pair_values
from everypair.torch._options import LossOptions


def loss_and_pair_weight(
    scores: Tensor,
    labels: Labels,
    weights: Tensor | None,
    groups: Tensor | None,
    options: LossOptions,
    one_class: Tensor | None = None,
) -> tuple[Tensor, Tensor | float | None]:
    """Return the reduced loss of a batch that nobody has checked, and the pair weight of each task.

    See `_dispatch.Result` for the pair weight and the counter `one_class`.
    """
    ordinary = is_ordinary(scores)
    with_grad = ordinary and scores.requires_grad and torch.is_grad_enabled()
    if with_grad and groups is None and options.pairs == "binary":
        sums = _dispatch.direct_loss_and_grad(scores, labels, weights, options)
        if sums is not None:
            value, pair_weight, grad = sums
            return _eager(scores, (value, grad, (labels, weights, None), options)), pair_weight
    labels, weights, options = checked(scores, labels, weights, groups, options)
    if options.rates is not None:
        weights = kept_weights(scores, labels, weights, groups, options)
    data = labels, weights, groups
    rows = in_rows(scores.detach() if with_grad else scores, *data)
    if ordinary:
        result = _dispatch.evaluate(
            *rows, options, grad=with_grad, one_class=one_class, replay=True
        )
        value, weight, rows_grad = result[:3]
        if rows_grad is not None:
            grad = rows_grad if scores.dim() == 1 else in_columns(rows_grad, scores)
            value = _eager(scores, (value, grad, data, options))
    else:
        value, weight, _ = pair_values(*rows, *options.flat(scores.is_cpu))
    if scores.dim() == 1:
        return value, weight
    if options.by_task:
        return value.reshape(scores.shape[1]), weight
    if value.dim() == 1:
        value = value.sum()
        if options.mean:
            value = value / (cast("Tensor", weight) > 0.0).sum().clamp(min=1)
    return value, weight


class _Eager(Function):
    """Record the loss of ordinary tensors, and the gradient that was computed with it."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, results: tuple[Tensor, Tensor, Data, LossOptions]
    ) -> Tensor:
        value, grad, data, ctx.options = results
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
        grad = pair_values(*in_rows(scores, *data), *ctx.options.flat(scores.is_cpu))[2]
    else:
        rows = in_rows(scores.detach(), *data)
        result = _dispatch.evaluate(*rows, ctx.options, grad=True, replay=True)
        grad = cast("Tensor", result.grad)
    return in_columns(grad, scores) * factor


def _is_one(factor: Tensor) -> bool:
    """Return whether a factor is known to be one, without waiting for a device."""
    if not factor.is_cpu or factor.dim() or torch.compiler.is_compiling():
        return False
    try:
        return factor.item() == 1.0
    except RuntimeError:  # a batch of factors has no single value
        return False
