"""How the loss is differentiated: `pair_values` chooses one of three implementations.

- `_Eager`, for ordinary tensors: computes the gradient together with the loss, and returns it in
  the first backward.
- `_PairValues` and `_PairHvp`, for `torch.func`, `torch.vmap`, forward mode and second derivatives:
  functions whose outputs can be differentiated again.
- the registered operators of `_operators`, for `torch.compile` and `torch.export`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.autograd import Function

from everypair.torch import _dispatch
from everypair.torch._compat import is_legacy_batched, is_transformed, n_dispatch_modes
from everypair.torch._inputs import score_rows
from everypair.torch._operators import (
    pair_hvp_op,
    pair_values_op,
    scaled,
    scores_grad,
    with_batch_dim,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from everypair.torch._dispatch import Counter, Options
    from everypair.torch._inputs import Data

__all__ = ["pair_values"]

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def pair_values(
    scores: Tensor, data: Data, options: Options, counter: Counter | None
) -> tuple[Tensor, Tensor | None]:
    """Return the loss and the pair weight of every task.

    Parameters
    ----------
    scores : (n,) or (n, tasks)
    data : labels, weights, groups
        As `check_data` returns them, with rows in the last dimension.
    options : Options
    counter : callable, optional
        See `_dispatch.evaluate`; for a single task only.

    Returns
    -------
    value : () or (tasks,)
    pair_weight : () or (tasks,), or None
        None if there is one task and `counter`, if there is one, has counted it.
    """
    if torch.compiler.is_compiling() or type(scores) not in _PLAIN or n_dispatch_modes():
        found = pair_values_op(score_rows(scores), *data, *options.flat())
        return cast("tuple[Tensor, Tensor, Tensor]", found)[:2]
    if is_transformed():
        return _pair_values(score_rows(scores), *data, options)[:2]
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
        ctx: Any,
        scores: Tensor,
        data: Data,
        options: Options,
        counter: Counter | None,
        pair_weight: list[Tensor | None],
    ) -> Tensor:
        rows = score_rows(scores)
        value, weight, grad = _dispatch.loss_and_grad(rows, *data, options, counter)
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
    scores, labels, weights, groups = ctx.saved_tensors
    inputs = score_rows(scores), labels, weights, groups, ctx.options
    if torch.is_grad_enabled():  # create_graph=True: the gradient will be differentiated again
        grad = _pair_values(*inputs)[2]
    else:  # an earlier backward has returned the gradient
        grad = _dispatch.loss_and_grad(*inputs, counter=None)[2]
    return scaled(grad, factor, ctx.dtype)


def _is_one(factor: Tensor) -> bool:
    """Return whether a factor on the CPU is known to be one."""
    if factor.dim() or torch.compiler.is_compiling():
        return False
    try:
        return factor.item() == 1.0
    except RuntimeError:  # a batch of factors has no single value
        return False


class _PairValues(Function):
    """Losses (...), pair weights (...) and gradients (..., n) of scores (..., n)."""

    @staticmethod
    def forward(
        scores: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        groups: Tensor | None,
        options: Options,
    ) -> tuple[Tensor, Tensor, Tensor]:
        result = _dispatch.evaluate(scores, labels, weights, groups, options, grad=True)
        return cast("tuple[Tensor, Tensor, Tensor]", result[:3])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.options = inputs
        ctx.save_for_backward(*tensors, output[2])
        ctx.save_for_forward(*tensors, output[2])
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(
        ctx: Any, factor: Tensor | None, _: None, vector: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        *inputs, grad = ctx.saved_tensors
        found = scores_grad(
            inputs[0], grad, factor, vector, lambda v: _pair_hvp(*inputs, v, ctx.options)
        )
        return found, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> tuple[Tensor, None, Tensor]:
        *inputs, grad = ctx.saved_tensors
        tangent = tangent.to(grad.dtype)
        return (grad * tangent).sum(-1), None, _pair_hvp(*inputs, tangent, ctx.options)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *args: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        *tensors, options = args
        rows = with_batch_dim(info.batch_size, in_dims, tensors)
        return _pair_values(*rows, options), (0, 0, 0)


class _PairHvp(Function):
    """The Hessian of the losses times a vector of the shape of the scores."""

    @staticmethod
    def forward(
        scores: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        groups: Tensor | None,
        vector: Tensor,
        options: Options,
    ) -> Tensor:
        if is_legacy_batched(vector):
            operator = cast("Callable[..., Tensor]", pair_hvp_op)
            return operator(scores, labels, weights, groups, vector, *options.flat())
        result = _dispatch.evaluate(scores, labels, weights, groups, options, vector=vector)
        return cast("Tensor", result.hvp)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, _, ctx.options = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, vector: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, None, _pair_hvp(*ctx.saved_tensors, vector, ctx.options), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        return _pair_hvp(*ctx.saved_tensors, tangents[4], ctx.options)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        *tensors, options = args
        return _pair_hvp(*with_batch_dim(info.batch_size, in_dims, tensors), options), 0


_pair_values = cast("Callable[..., tuple[Tensor, Tensor, Tensor]]", _PairValues.apply)
_pair_hvp = cast("Callable[..., Tensor]", _PairHvp.apply)
