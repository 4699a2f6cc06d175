"""The loss and its Hessian-vector product as registered operators, for compile and export.

`torch.compile` and `torch.export` put ``everypair::pair_values`` and ``everypair::pair_hvp`` into a
graph as they are. Both can be differentiated and batched by `torch.vmap`. The gradient is an output
of `pair_values`, so that a second derivative finds it in the graph; its own derivative is
`pair_hvp`. That one is linear in its vector, and constant in the scores between knots: a jump of
the slope at a knot adds nothing to a second derivative.

The formulas for backward and for vmap at the end are shared with the functions of `_autograd`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from everypair.torch import _dispatch
from everypair.torch._dispatch import Options
from everypair.torch._inputs import value_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

__all__ = ["pair_hvp_op", "pair_values_op", "scaled", "scores_grad", "with_batch_dim"]

_DATA = "Tensor scores, Tensor labels, Tensor? weights, Tensor? groups"
# The arguments of `Options`; a surrogate is five numbers per term, see `surrogates.KnotTerm`.
_OPTIONS = "float[] terms, bool mean, bool check, bool missing"


def _options(terms: Sequence[float], mean: bool, check: bool, missing: bool) -> Options:
    starts = range(0, len(terms), 5)
    return Options(
        tuple((*terms[i : i + 4], bool(terms[i + 4])) for i in starts),  # type: ignore[misc]
        mean,
        check,
        missing,
    )


@torch.library.custom_op(
    "everypair::pair_values",
    mutates_args=(),
    schema=f"({_DATA}, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
)
def pair_values_op(
    scores: Tensor, labels: Tensor, weights: Tensor | None, groups: Tensor | None, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return losses (...), pair weights (...) and gradients (..., n) of scores (..., n)."""
    result = _dispatch.evaluate(scores, labels, weights, groups, _options(*options), grad=True)
    return cast("tuple[Tensor, Tensor, Tensor]", result[:3])


@torch.library.custom_op(
    "everypair::pair_hvp",
    mutates_args=(),
    schema=f"({_DATA}, Tensor vector, {_OPTIONS}) -> Tensor",
)
def pair_hvp_op(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    groups: Tensor | None,
    vector: Tensor,
    *options: Any,
) -> Tensor:
    """Return the Hessian of the losses times a vector of the shape of the scores."""
    result = _dispatch.evaluate(scores, labels, weights, groups, _options(*options), vector=vector)
    return cast("Tensor", result.hvp)


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
    ctx.options = inputs[4:]
    ctx.save_for_backward(*inputs[:4], output[2])
    ctx.set_materialize_grads(False)


def _values_backward(
    ctx: Any, factor: Tensor | None, _: None, vector: Tensor | None
) -> tuple[Tensor | None, ...]:
    *inputs, grad = ctx.saved_tensors
    found = scores_grad(
        inputs[0], grad, factor, vector, lambda v: pair_hvp_op(*inputs, v, *ctx.options)
    )
    return found, *[None] * 7


def _hvp_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.options = inputs[5:]
    ctx.save_for_backward(*inputs[:4])


def _hvp_backward(ctx: Any, vector: Tensor) -> tuple[Tensor | None, ...]:
    hvp = pair_hvp_op(*ctx.saved_tensors, vector, *ctx.options)
    return None, None, None, None, hvp, *[None] * 4


pair_values_op.register_autograd(_values_backward, setup_context=_values_context)
pair_hvp_op.register_autograd(_hvp_backward, setup_context=_hvp_context)


@pair_values_op.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, tuple[int, ...]]:
    rows = with_batch_dim(info.batch_size, in_dims[:4], args[:4])
    return pair_values_op(*rows, *args[4:]), (0, 0, 0)


@pair_hvp_op.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, int]:
    rows = with_batch_dim(info.batch_size, in_dims[:5], args[:5])
    return pair_hvp_op(*rows, *args[5:]), 0


def scores_grad(
    scores: Tensor,
    grad: Tensor,
    factor: Tensor | None,
    vector: Tensor | None,
    hessian_times: Callable[[Tensor], Tensor],
) -> Tensor | None:
    """Return the derivative in the scores, from that in the losses and that in their gradients.

    Parameters
    ----------
    scores, grad : (..., n)
    factor : (...) or None
        The derivative of the whole computation in the losses.
    vector : (..., n) or None
        Its derivative in their gradients.
    hessian_times : callable
        Multiplies the Hessian of the losses by a vector.
    """
    found = None if factor is None else scaled(grad, factor, scores.dtype)
    if vector is not None:
        hvp = hessian_times(vector).to(scores.dtype)
        found = hvp if found is None else found + hvp
    return found


def scaled(grad: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return gradients (..., n) times factors (...), rounded to the type of the scores."""
    return (grad * (factor if factor.dim() == 0 else factor.unsqueeze(-1))).to(dtype)


def with_batch_dim(
    size: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Move the dimension of a vmap to the front; return tensors that broadcast to the scores.

    Scores get one more leading dimension, of this size, even if they are the same for all.
    """
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
