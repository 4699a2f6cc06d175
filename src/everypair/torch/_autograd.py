"""The one entry into the loss on tensors, and how the loss is differentiated.

`loss_and_pair_weight` chooses between two implementations:

- `recorded`, for ordinary tensors: the gradient is computed together with the loss, and returned in
  the first backward;
- `_operators.pair_sums`, for everything else: `torch.compile`, `torch.export`, `torch.func`,
  `torch.vmap`, forward mode, and second derivatives of ordinary tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from everypair.torch import _dispatch
from everypair.torch._compat import is_ordinary, skip_backward_wrapper
from everypair.torch._inputs import Labels, checked, in_columns, in_rows
from everypair.torch._operators import pair_sums
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
    if with_grad:
        sums = _dispatch.direct_loss_and_grad(scores, labels, weights, groups, options)
        if sums is not None:
            value, pair_weight, grad = sums
            derivative = partial(_grad, options)
            return recorded(scores, (value, grad, (labels, weights, None), derivative)), pair_weight
    labels, weights, options = checked(scores, labels, weights, groups, options)
    data = labels, weights, groups
    rows = in_rows(scores.detach() if with_grad else scores, *data)
    if ordinary:
        result = _dispatch.evaluate(
            *rows, options, grad=with_grad, one_class=one_class, replay=True
        )
        value, weight, rows_grad = result[:3]
        if rows_grad is not None:
            grad = rows_grad if scores.dim() == 1 else in_columns(rows_grad, scores)
            value = recorded(scores, (value, grad, data, partial(_grad, options)))
    else:
        value, weight, _ = pair_sums(*rows, None, *options.flat(scores.is_cpu))
    return (value if scores.dim() == 1 else over_tasks(value, weight, scores, options)), weight


def over_tasks(value: Tensor, weight: Any, scores: Tensor, options: LossOptions) -> Tensor:
    """Reduce the losses of tasks: to their sum, or the mean of those with a pair weight."""
    if options.by_task:
        return value.reshape(scores.shape[1:])
    if value.dim() == 0:
        return value
    total = value.sum()
    return total / (weight > 0.0).sum().clamp(min=1) if options.mean else total


class _Recorded(Function):
    """Record a loss that was computed before.

    `results` are the loss, its gradient or None, tensors, and a function of the scores and these
    tensors, which returns the gradient again for another backward or for a second derivative.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, results: tuple[Any, ...]) -> Tensor:
        value, grad, data, ctx.derivative = results
        ctx.save_for_backward(scores, *data)
        ctx.gradients = [] if grad is None else [grad]
        return cast("Tensor", value)

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor, None]:
        # The engine rounds the product to the type of the scores.
        gradients = ctx.gradients
        if not gradients or torch.is_grad_enabled():
            return ctx.derivative(*ctx.saved_tensors) * factor, None
        # Without a reference of our own, torch need not copy the gradient.
        if _is_one(factor) or _dispatch.scale_in_place(gradients[0], factor):
            return gradients.pop(), None
        return gradients[0] * factor, None


skip_backward_wrapper(_Recorded)
# `Function.apply` would check for transforms a second time before it calls this method of its base.
recorded = cast("Callable[..., Tensor]", super(Function, _Recorded).apply)


def _grad(options: LossOptions, scores: Tensor, *data: Any) -> Tensor:
    """Compute the gradient again."""
    if torch.is_grad_enabled():  # create_graph=True: the gradient will be differentiated again
        grad = pair_sums(*in_rows(scores, *data), None, *options.flat(scores.is_cpu))[2]
    else:
        rows = in_rows(scores.detach(), *data)
        grad = cast("Tensor", _dispatch.evaluate(*rows, options, grad=True, replay=True).grad)
    return in_columns(grad, scores)


def _is_one(factor: Tensor) -> bool:
    """Return whether a factor is known to be one, without waiting for a device."""
    if not factor.is_cpu or factor.dim() or torch.compiler.is_compiling():
        return False
    try:
        return factor.item() == 1.0
    except RuntimeError:  # a batch of factors has no single value
        return False
