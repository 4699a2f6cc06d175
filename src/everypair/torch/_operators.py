"""The loss and its Hessian-vector product as functions that can be differentiated again.

Each exists twice, with the same formulas for backward and for `torch.vmap`:

- as an autograd function (`_PairValues`, `_PairHvp`), for `torch.func`, `torch.vmap`, forward mode
  and second derivatives;
- as a registered operator (``everypair::pair_values``, ``everypair::pair_hvp``), which
  `torch.compile` and `torch.export` put into a graph as it is.

`pair_values` and `pair_hvp` choose between the two. The gradient is an output of `pair_values`, so
that a second derivative finds it in the graph; its own derivative is `pair_hvp`. That one is linear
in its vector. For polynomials it is constant in the scores between knots: a jump of the slope at a
knot adds nothing to a second derivative. Third derivatives of smooth surrogates raise an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from everypair.surrogates import are_polynomials
from everypair.torch import _dispatch
from everypair.torch._compat import is_legacy_batched, needs_operator
from everypair.torch._inputs import value_dtype
from everypair.torch._options import from_flat

_DATA = "Tensor scores, Tensor labels, Tensor? weights, Tensor? groups"
_OPTIONS = "str terms, bool mean, bool check, bool missing, str pairs"  # see `LossOptions.flat`


def pair_values(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return losses (...), pair weights (...) and gradients (..., n).

    The inputs are scores (..., n), labels, weights, groups, and `LossOptions.flat`.
    """
    function = pair_values_op if needs_operator(inputs[0]) else _values_function
    return cast("tuple[Tensor, Tensor, Tensor]", function(*inputs))


def _pair_hvp(*inputs: Any) -> Tensor:
    """Return the Hessian of the losses times a vector, the fifth input, of the scores' shape."""
    function = pair_hvp_op if needs_operator(inputs[4]) else _hvp_function
    return cast("Tensor", function(*inputs))


def scaled(grad: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return gradients (..., n) times factors (...), rounded to the type of the scores."""
    return (grad * (factor if factor.dim() == 0 else factor.unsqueeze(-1))).to(dtype)


def _vmap(
    function: Callable[..., Any], n_tensors: int, info: Any, in_dims: Sequence[Any], *inputs: Any
) -> tuple[Any, int]:
    """Call a function of this module under `torch.vmap`, with the new dimension in front.

    Scores get this dimension even if they are the same for all; the other tensors among the first
    `n_tensors` inputs broadcast to the scores.
    """
    scores = inputs[0]
    rank = scores.dim() - (in_dims[0] is not None)
    rows: list[Tensor | None] = []
    for tensor, dim in zip(inputs[:n_tensors], in_dims, strict=False):
        if tensor is not None and dim is not None:
            tensor = tensor.movedim(dim, 0)
            tensor = tensor[(slice(None), *[None] * (rank + 1 - tensor.dim()))]
        rows.append(tensor)
    if in_dims[0] is None:
        rows[0] = scores.expand(info.batch_size, *scores.shape)
    return function(*rows, *inputs[n_tensors:]), 0


class _PairValues(Function):
    """The autograd function of `pair_values`."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        scores, labels, weights, groups, *flat = inputs
        options = from_flat(*flat)
        result = _dispatch.evaluate(scores, labels, weights, groups, options, grad=True)
        weight = result.pair_weight
        if isinstance(weight, float):
            weight = torch.scalar_tensor(weight, dtype=torch.float64, device="cpu")
        return result.value, cast("Tensor", weight), cast("Tensor", result.grad)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.options = inputs[4:]
        ctx.save_for_backward(*inputs[:4], output[2])
        ctx.save_for_forward(*inputs[:4], output[2])
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(
        ctx: Any, factor: Tensor | None, _: None, vector: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Take the derivatives in the losses (...) and in their gradients (..., n)."""
        *inputs, grad = ctx.saved_tensors
        dtype = inputs[0].dtype
        found = None if factor is None else scaled(grad, factor, dtype)
        if vector is not None:
            hvp = _pair_hvp(*inputs, vector, *ctx.options).to(dtype)
            found = hvp if found is None else found + hvp
        return found, *[None] * 8

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> tuple[Tensor, None, Tensor]:
        *inputs, grad = ctx.saved_tensors
        tangent = tangent.to(grad.dtype)
        return (grad * tangent).sum(-1), None, _pair_hvp(*inputs, tangent, *ctx.options)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, int]:
        return _vmap(_values_function, 4, info, in_dims, *inputs)


class _PairHvp(Function):
    """The autograd function of the Hessian-vector product."""

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        scores, labels, weights, groups, vector, *flat = inputs
        if is_legacy_batched(vector):
            return cast("Tensor", pair_hvp_op(*inputs))
        options = from_flat(*flat)
        result = _dispatch.evaluate(scores, labels, weights, groups, options, vector=vector)
        return cast("Tensor", result.hvp)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.options = inputs[5:]
        ctx.save_for_backward(*inputs[:4])
        ctx.save_for_forward(*inputs[:4])

    @staticmethod
    def backward(ctx: Any, vector: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.needs_input_grad[0] and not are_polynomials(from_flat(*ctx.options).terms):
            raise RuntimeError(
                "the loss must not be differentiated three times with a smooth surrogate, whose "
                "third derivative is not implemented. Detach the Hessian-vector product, or use a "
                "surrogate of polynomials, whose third derivative is zero between knots."
            )
        hvp = _pair_hvp(*ctx.saved_tensors, vector, *ctx.options)
        return None, None, None, None, hvp, *[None] * 5

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        return _pair_hvp(*ctx.saved_tensors, tangents[4], *ctx.options)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, int]:
        return _vmap(_hvp_function, 5, info, in_dims, *inputs)


_values_function = cast("Callable[..., tuple[Tensor, Tensor, Tensor]]", _PairValues.apply)
_hvp_function = cast("Callable[..., Tensor]", _PairHvp.apply)

_VALUES_SCHEMA = f"({_DATA}, {_OPTIONS}) -> (Tensor, Tensor, Tensor)"
_HVP_SCHEMA = f"({_DATA}, Tensor vector, {_OPTIONS}) -> Tensor"
pair_values_op = torch.library.custom_op(
    "everypair::pair_values", _PairValues.forward, mutates_args=(), schema=_VALUES_SCHEMA
)
pair_hvp_op = torch.library.custom_op(
    "everypair::pair_hvp", _PairHvp.forward, mutates_args=(), schema=_HVP_SCHEMA
)
pair_values_op.register_autograd(_PairValues.backward, setup_context=_PairValues.setup_context)
pair_values_op.register_vmap(partial(_vmap, pair_values_op, 4))
pair_hvp_op.register_autograd(_PairHvp.backward, setup_context=_PairHvp.setup_context)
pair_hvp_op.register_vmap(partial(_vmap, pair_hvp_op, 5))


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
