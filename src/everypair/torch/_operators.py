"""The operators that `torch.compile` and `torch.export` put into a graph as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from everypair.torch import _dispatch
from everypair.torch._dispatch import Question
from everypair.torch._inputs import value_dtype
from everypair.torch._transforms import batched, scores_grad

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["pair_hvp_op", "pair_values", "pair_values_op"]

_DATA = "Tensor scores, Tensor labels, Tensor? weights, Tensor? groups"
# A surrogate travels as five numbers a term; see `everypair.surrogates.KnotTerm`.
_QUESTION = "float[] terms, bool mean, bool check, bool missing"


def pair_values(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    groups: Tensor | None,
    question: Question,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return losses, pair weights and gradients of scores of shape (..., n)."""
    found = pair_values_op(scores, labels, weights, groups, *question.flat())
    return cast("tuple[Tensor, Tensor, Tensor]", found)


def _question(terms: Sequence[float], mean: bool, check: bool, missing: bool) -> Question:
    places = range(0, len(terms), 5)
    return Question(
        tuple((*terms[i : i + 4], bool(terms[i + 4])) for i in places),  # type: ignore[misc]
        mean,
        check,
        missing,
    )


@torch.library.custom_op(
    "everypair::pair_values",
    mutates_args=(),
    schema=f"({_DATA}, {_QUESTION}) -> (Tensor, Tensor, Tensor)",
)
def pair_values_op(
    scores: Tensor, labels: Tensor, weights: Tensor | None, groups: Tensor | None, *question: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute what `pair_values` returns."""
    answer = _dispatch.evaluate(scores, labels, weights, groups, _question(*question), grad=True)
    return cast("tuple[Tensor, Tensor, Tensor]", answer[:3])


@torch.library.custom_op(
    "everypair::pair_hvp",
    mutates_args=(),
    schema=f"({_DATA}, Tensor vector, {_QUESTION}) -> Tensor",
)
def pair_hvp_op(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    groups: Tensor | None,
    vector: Tensor,
    *question: Any,
) -> Tensor:
    """Multiply the Hessian of the losses by a vector of the shape of the scores."""
    answer = _dispatch.evaluate(
        scores, labels, weights, groups, _question(*question), vector=vector
    )
    return cast("Tensor", answer.hvp)


@pair_values_op.register_fake
def _(scores: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    dtype = value_dtype(scores)
    weight_dtype = torch.float32 if scores.device.type == "mps" else torch.float64
    return (
        scores.new_empty(scores.shape[:-1], dtype=dtype),
        scores.new_empty(scores.shape[:-1], dtype=weight_dtype),
        scores.new_empty(scores.shape, dtype=dtype),
    )


@pair_hvp_op.register_fake
def _(scores: Tensor, *_: Any) -> Tensor:
    return scores.new_empty(scores.shape, dtype=value_dtype(scores))


def _values_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.question = inputs[4:]
    ctx.save_for_backward(*inputs[:4], output[2])
    ctx.set_materialize_grads(False)


def _values_backward(
    ctx: Any, factor: Tensor | None, _: None, vector: Tensor | None
) -> tuple[Tensor | None, ...]:
    *inputs, grad = ctx.saved_tensors
    found = scores_grad(
        inputs[0], grad, factor, vector, lambda v: pair_hvp_op(*inputs, v, *ctx.question)
    )
    return found, *[None] * 7


def _hvp_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.question = inputs[5:]
    ctx.save_for_backward(*inputs[:4])


def _hvp_backward(ctx: Any, vector: Tensor) -> tuple[Tensor | None, ...]:
    product = pair_hvp_op(*ctx.saved_tensors, vector, *ctx.question)
    return None, None, None, None, product, *[None] * 4


pair_values_op.register_autograd(_values_backward, setup_context=_values_context)
pair_hvp_op.register_autograd(_hvp_backward, setup_context=_hvp_context)


@pair_values_op.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, tuple[int, ...]]:
    rows = batched(info.batch_size, in_dims[:4], args[:4])
    return pair_values_op(*rows, *args[4:]), (0, 0, 0)


@pair_hvp_op.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, int]:
    rows = batched(info.batch_size, in_dims[:5], args[:5])
    return pair_hvp_op(*rows, *args[5:]), 0
