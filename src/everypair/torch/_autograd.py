"""How the loss is differentiated: once, twice, under transforms, compiled and exported.

Three ways lead to the same kernels:

- `_Eager`, the cheap one, for ordinary tensors: the gradient is computed together with the loss and
  handed over by the first backward.
- `values` and `product` of `_transforms`, whose outputs can be differentiated again.
- the operators ``everypair::pair_values`` and ``everypair::pair_hvp`` of `_operators`, which
  `torch.compile` and `torch.export` take as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.autograd import Function, forward_ad

from everypair.torch import _dispatch, _operators
from everypair.torch._inputs import score_rows
from everypair.torch._transforms import scaled
from everypair.torch._transforms import values as transformable_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from everypair.torch._dispatch import Question

__all__ = ["is_transformed", "pair_values"]

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
# The cheap way reads memory, so it must know who else wants to see the operations. Torch has no
# public names for these questions.
_transforms_active = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack


def is_transformed() -> bool:
    """Return whether `torch.func`, `torch.vmap` or forward mode is at work, uncompiled."""
    if torch.compiler.is_compiling():
        return False
    return _transforms_active() or forward_ad._current_level >= 0


def pair_values(
    scores: Tensor, data: tuple[Tensor, Tensor | None, Tensor | None], question: Question
) -> tuple[Tensor, Tensor | float | None]:
    """Return the loss and the pair weight of every task, from what has passed the door.

    Scores have the shape in which they arrived, labels, weights and groups that of `data_for`.
    """
    if torch.compiler.is_compiling() or type(scores) not in _PLAIN or _dispatch_modes():
        return _operators.pair_values(score_rows(scores), *data, question)[:2]
    if is_transformed():
        return transformable_values(score_rows(scores), *data, question.uncounted())[:2]
    if scores.requires_grad and torch.is_grad_enabled():
        # What is not differentiated leaves through a list: a second output would cost as much as
        # the kernel does for a small batch.
        pair_weight: list[Tensor | float | None] = []
        values = _eager(scores, data, question, pair_weight)
        return values, pair_weight[0]
    return _dispatch.evaluate(score_rows(scores), *data, question)[:2]


class _Eager(Function):
    """The loss of ordinary tensors, with as little around the kernel as torch allows."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        data: tuple[Tensor, Tensor | None, Tensor | None],
        question: Question,
        pair_weight: list[Tensor | float | None],
    ) -> Tensor:
        rows = score_rows(scores)
        labels, weights, groups = data
        value, weight, grad = (
            groups is None and _dispatch.loss_and_grad(rows, labels, weights, question)
        ) or _dispatch.evaluate(rows, labels, weights, groups, question, grad=True)[:3]
        pair_weight.append(weight)
        ctx.save_for_backward(scores, labels, weights, groups)
        ctx.question = question
        ctx.dtype = scores.dtype
        ctx.is_table = rows is not scores
        ctx.held = [grad]
        return value

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor, None, None, None]:
        grad = _rows_grad(ctx, factor)
        if ctx.is_table:
            grad = grad.unsqueeze(1) if grad.dim() == 1 else grad.t()
        return grad, None, None, None


# `Function.apply` looks for transforms once more before it calls this one.
_eager = cast("Callable[..., Tensor]", super(Function, _Eager).apply)


def _rows_grad(ctx: Any, factor: Tensor) -> Tensor:
    held = ctx.held
    if held and not torch.is_grad_enabled():
        if held[0].dtype is ctx.dtype:
            # Given away, so that torch need not copy it.
            if factor.is_cpu:
                if _is_one(factor):
                    return cast("Tensor", held.pop())
            elif (found := _dispatch.scale_in_place(held[0], factor)) is not None:
                held.clear()
                return found
        return scaled(held[0], factor, ctx.dtype)
    scores, labels, weights, groups = ctx.saved_tensors
    rows, question = score_rows(scores), ctx.question.uncounted()
    # With create_graph the gradient itself will be differentiated; without, it was given away to an
    # earlier backward.
    if torch.is_grad_enabled():
        grad = transformable_values(rows, labels, weights, groups, question)[2]
    else:
        answer = _dispatch.evaluate(rows, labels, weights, groups, question, grad=True)
        grad = cast("Tensor", answer.grad)
    return scaled(grad, factor, ctx.dtype)


def _is_one(factor: Tensor) -> bool:
    """Return whether a factor on the CPU is known to be one."""
    if factor.dim() or torch.compiler.is_compiling():
        return False
    try:
        return factor.item() == 1.0
    except RuntimeError:  # a batch of factors has no single value
        return False
