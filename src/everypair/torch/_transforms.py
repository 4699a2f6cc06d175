"""Loss, gradient and Hessian-vector product as functions that can be transformed again.

The gradient is an output of `values`, so that a second derivative finds it in the graph: its own
derivative is `product`. That one is linear in its vector, and constant in the scores between knots;
a jump of the slope at a knot adds nothing to a second derivative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.autograd import Function

from everypair.torch import _dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from everypair.torch._dispatch import Question

__all__ = ["batched", "product", "scaled", "scores_grad", "values"]


class _Values(Function):
    """Losses, pair weights and gradients of scores of shape (..., n)."""

    @staticmethod
    def forward(
        scores: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        groups: Tensor | None,
        question: Question,
    ) -> tuple[Tensor, Tensor, Tensor]:
        answer = _dispatch.evaluate(scores, labels, weights, groups, question, grad=True)
        return cast("tuple[Tensor, Tensor, Tensor]", answer[:3])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.question = inputs
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
            inputs[0], grad, factor, vector, lambda v: product(*inputs, v, ctx.question)
        )
        return found, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> tuple[Tensor, None, Tensor]:
        *inputs, grad = ctx.saved_tensors
        tangent = tangent.to(grad.dtype)
        return (grad * tangent).sum(-1), None, product(*inputs, tangent, ctx.question)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *args: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        *tensors, question = args
        return values(*batched(info.batch_size, in_dims, tensors), question), (0, 0, 0)


class _Product(Function):
    """The Hessian of the losses times a vector of the shape of the scores."""

    @staticmethod
    def forward(
        scores: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        groups: Tensor | None,
        vector: Tensor,
        question: Question,
    ) -> Tensor:
        if _is_batched_grad(vector):
            operator: Callable[..., Tensor] = torch.ops.everypair.pair_hvp
            return operator(scores, labels, weights, groups, vector, *question.flat())
        answer = _dispatch.evaluate(scores, labels, weights, groups, question, vector=vector)
        return cast("Tensor", answer.hvp)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, _, ctx.question = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, vector: Tensor) -> tuple[Tensor | None, ...]:
        found = product(*ctx.saved_tensors, vector, ctx.question)
        return None, None, None, None, found, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        return product(*ctx.saved_tensors, tangents[4], ctx.question)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        *tensors, question = args
        return product(*batched(info.batch_size, in_dims, tensors), question), 0


values = cast("Callable[..., tuple[Tensor, Tensor, Tensor]]", _Values.apply)
product = cast("Callable[..., Tensor]", _Product.apply)


def _is_batched_grad(vector: Tensor) -> bool:
    """Return whether `torch.autograd.grad` sends many vectors at once.

    It has a kind of tensor of its own for that, which only operators of `torch.library` can read.
    """
    return torch._C._functorch.is_legacy_batchedtensor(vector)


def scores_grad(
    scores: Tensor,
    grad: Tensor,
    factor: Tensor | None,
    vector: Tensor | None,
    hessian_times: Callable[[Tensor], Tensor],
) -> Tensor | None:
    """Return what reaches the scores: `factor` from the losses, `vector` from their gradient."""
    found = None if factor is None else scaled(grad, factor, scores.dtype)
    if vector is not None:
        second = hessian_times(vector).to(scores.dtype)
        found = second if found is None else found + second
    return found


def scaled(grad: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient times what came from above, rounded to the type of the scores."""
    return (grad * (factor if factor.dim() == 0 else factor.unsqueeze(-1))).to(dtype)


def batched(
    size: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Return tensors that broadcast to scores with one more leading dimension, of this size."""
    scores = cast("Tensor", tensors[0])
    rank = scores.dim() - (in_dims[0] is not None)
    out: list[Tensor | None] = []
    for tensor, dim in zip(tensors, in_dims, strict=False):
        if tensor is None or dim is None:
            out.append(tensor)
            continue
        moved = tensor.movedim(dim, 0)
        out.append(moved[(slice(None), *[None] * (rank + 1 - moved.dim()))])
    out[0] = scores.expand(size, *scores.shape) if in_dims[0] is None else out[0]
    return out
