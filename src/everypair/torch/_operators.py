"""The loss and its Hessian-vector product as a function that can be differentiated again.

It exists twice, with the same formulas for backward and for `torch.vmap`:

- as an autograd function, for `torch.func`, `torch.vmap`, forward mode and second derivatives;
- as a registered operator, ``everypair::pair_sums``, which `torch.compile` and `torch.export` put
  into a graph as it is.

`pair_sums` chooses between the two. The gradient is an output, so that a second derivative finds it
in the graph; its own derivative is the Hessian times a vector, which is linear in the vector. For
polynomials it is constant in the scores between knots: a jump of the slope at a knot adds nothing
to a second derivative. Third derivatives of smooth surrogates raise an error.
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

Sums = tuple[Tensor, Tensor, Tensor]


def pair_sums(*inputs: Any) -> Sums:
    """Return losses (...), pair weights (...) and gradients (..., n).

    The inputs are scores (..., n), labels, weights, groups, a vector or None, and
    `LossOptions.flat`. With a vector, the last result is the Hessian times the vector, and the
    others are not to be used.
    """
    differentiated = inputs[0] if inputs[4] is None else inputs[4]
    return (pair_sums_op if needs_operator(differentiated) else _function)(*inputs)


def _vmap(
    function: Callable[..., Sums], info: Any, in_dims: Sequence[Any], *inputs: Any
) -> tuple[Sums, int]:
    """Call a form of `pair_sums` under `torch.vmap`, with the new dimension in front.

    Scores get this dimension even if they are the same for all; the other tensors broadcast to the
    scores.
    """
    scores = inputs[0]
    rank = scores.dim() - (in_dims[0] is not None)
    rows: list[Tensor | None] = []
    for tensor, dim in zip(inputs[:5], in_dims, strict=False):
        if tensor is not None and dim is not None:
            tensor = tensor.movedim(dim, 0)
            tensor = tensor[(slice(None), *[None] * (rank + 1 - tensor.dim()))]
        rows.append(tensor)
    if in_dims[0] is None:
        rows[0] = scores.expand(info.batch_size, *scores.shape)
    return function(*rows, *inputs[5:]), 0


class _PairSums(Function):
    """The autograd function of `pair_sums`."""

    @staticmethod
    def forward(*inputs: Any) -> Sums:
        scores, labels, weights, groups, vector, *flat = inputs
        if vector is not None and is_legacy_batched(vector):
            return cast("Sums", pair_sums_op(*inputs))
        value, weight, grad, _, hvp = _dispatch.evaluate(
            scores, labels, weights, groups, from_flat(*flat), grad=vector is None, vector=vector
        )
        if isinstance(weight, float):
            weight = torch.scalar_tensor(weight, dtype=torch.float64, device="cpu")
        return value, cast("Tensor", weight), cast("Tensor", grad if vector is None else hvp)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Sums) -> None:
        ctx.options, ctx.is_product = inputs[5:], inputs[4] is not None
        saved = *inputs[:4], None if ctx.is_product else output[2]
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)
        if ctx.is_product:
            ctx.mark_non_differentiable(*output[:2])
        else:
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(
        ctx: Any, factor: Tensor | None, _: Tensor | None, vector: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Take the derivatives in the losses (...) and in the last result (..., n)."""
        *inputs, grad = ctx.saved_tensors
        terms = from_flat(*ctx.options).terms
        if ctx.is_product and ctx.needs_input_grad[0] and not are_polynomials(terms):
            raise RuntimeError(
                "the loss must not be differentiated three times with a smooth surrogate, whose "
                "third derivative is not implemented. Detach the Hessian-vector product, or use a "
                "surrogate of polynomials, whose third derivative is zero between knots."
            )
        hvp = None if vector is None else pair_sums(*inputs, vector, *ctx.options)[2]
        if ctx.is_product:
            return *[None] * 4, hvp, *[None] * 5
        dtype, gradient = inputs[0].dtype, None
        if factor is not None:
            gradient = (grad * (factor if factor.dim() == 0 else factor.unsqueeze(-1))).to(dtype)
        if hvp is not None:
            gradient = hvp.to(dtype) if gradient is None else gradient + hvp.to(dtype)
        return gradient, *[None] * 9

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, None, Tensor]:
        *inputs, grad = ctx.saved_tensors
        if ctx.is_product:
            return None, None, pair_sums(*inputs, tangents[4], *ctx.options)[2]
        tangent = tangents[0].to(grad.dtype)
        hvp = pair_sums(*inputs, tangent, *ctx.options)[2]
        return (grad * tangent).sum(-1), None, hvp

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, int]:
        return _vmap(_function, info, in_dims, *inputs)


_function = cast("Callable[..., Sums]", _PairSums.apply)
pair_sums_op = torch.library.custom_op(
    "everypair::pair_sums",
    _PairSums.forward,
    mutates_args=(),
    schema="(Tensor scores, Tensor labels, Tensor? weights, Tensor? groups, Tensor? vector, "
    "str terms, bool mean, bool check, bool missing, str pairs) -> (Tensor, Tensor, Tensor)",
)
pair_sums_op.register_autograd(_PairSums.backward, setup_context=_PairSums.setup_context)
pair_sums_op.register_vmap(partial(_vmap, pair_sums_op))


@pair_sums_op.register_fake
def _(scores: Tensor, *_: Any) -> Sums:
    dtype = value_dtype(scores)
    weight_dtype = torch.float32 if scores.device.type == "mps" else torch.float64
    return (
        scores.new_empty(scores.shape[:-1], dtype=dtype),
        scores.new_empty(scores.shape[:-1], dtype=weight_dtype),
        scores.new_empty(scores.shape, dtype=dtype),
    )
