"""The loss as a function that JAX differentiates in closed form, twice, in either mode.

The derivative of the loss along a direction is the inner product with the gradient, and that of the
gradient is the Hessian-vector product. For truncated polynomials the Hessian is constant almost
everywhere, so its own derivative is zero. Third derivatives of smooth surrogates raise an error.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from everypair.arrays import levels, pair_sums
from everypair.jax._arrays import JaxArrays

if TYPE_CHECKING:
    from jax import Array

    from everypair.arrays.rows import PairSums
    from everypair.jax._inputs import Data


def _pair_sums(x: Array, data: Data, z: Array | None, *, grad: bool) -> PairSums:
    if data.ranked is not None:
        ranks, losers, n_bits = data.ranked
        return levels.evaluate(
            JaxArrays(x.dtype), x, ranks, data.weights, losers, z, data.terms, n_bits,
            mean=data.mean, grad=grad, hess=False,
        )  # fmt: skip
    return pair_sums.evaluate(
        JaxArrays(x.dtype), x, data.positive, data.weights, data.groups, z, data.terms,
        mean=data.mean, grad=grad, hess=False,
    )  # fmt: skip


# Compiled here, because hundreds of small operations would otherwise be dispatched one by one.
@jax.custom_jvp
@jax.jit
def _value_and_grad(x: Array, data: Data) -> tuple[Array, Array]:
    sums = _pair_sums(x, data, None, grad=True)
    return sums.value, sums.grad


@jax.custom_jvp
@jax.jit
def _hessian_times(x: Array, data: Data, z: Array) -> Array:
    # Double-double sums are linear in value only, so JAX could not transpose them. The Hessian is
    # symmetric, and `custom_linear_solve` is the form of that statement that JAX can also batch.
    def solve(_: Any, v: Array) -> Array:
        product: Array = _pair_sums(x, data, v, grad=False).hvp
        return product

    out: Array = lax.custom_linear_solve(lambda v: v, z, solve, symmetric=True)
    return out


@jax.custom_jvp
def value(x: Array, data: Data) -> Array:
    """Return the loss."""
    out: Array = _value_and_grad(x, data)[0]
    return out


@partial(value.defjvp, symbolic_zeros=True)
def _value_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    out, grad = _value_and_grad(*primals)
    z = _direction(*tangents)
    return out, jnp.zeros_like(out) if z is None else (grad * z).sum()


@partial(_value_and_grad.defjvp, symbolic_zeros=True)
def _value_and_grad_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    out, grad = _value_and_grad(*primals)
    z = _direction(*tangents)
    if z is None:
        return (out, grad), (jnp.zeros_like(out), jnp.zeros_like(grad))
    return (out, grad), ((grad * z).sum(), _hessian_times(*primals, z))


@partial(_hessian_times.defjvp, symbolic_zeros=True)
def _hessian_times_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    x, data, _ = primals
    out = _hessian_times(*primals)
    direction = _direction(*tangents[:2])
    if direction is not None and (data.terms.smooth or data.terms.exponential):
        raise ValueError(
            "the loss must not be differentiated three times with a smooth surrogate, whose third "
            "derivative is not implemented. Pass the scores through jax.lax.stop_gradient."
        )
    along = tangents[2]
    if isinstance(along, SymbolicZero):
        return out, jnp.zeros_like(out)
    return out, _hessian_times(x, data, along)


def _direction(along: Any, of_data: Data) -> Array | None:
    """Return the direction in the scores, or None if there is none."""
    for name, part in (("weights", of_data.weights), ("margin", of_data.terms)):
        if not all(isinstance(leaf, SymbolicZero) for leaf in jax.tree.leaves(part)):
            raise ValueError(
                f"{name} must not be differentiated, because the loss has derivatives in the "
                f"scores only; got {name} with a derivative. Pass jax.lax.stop_gradient({name})."
            )
    return None if isinstance(along, SymbolicZero) else along
