"""The loss as a function that JAX differentiates in closed form, twice, in either mode.

Its derivative along a direction is the gradient's product with it, and the gradient's derivative is
the Hessian's. The Hessian is constant almost everywhere, so there the derivatives end.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from everypair.jax import _class_moments, _sorted_moments

if TYPE_CHECKING:
    from jax import Array

    from everypair.jax._sorted_moments import Data, Truncated

__all__ = ["value"]


def _moments(truncated: Truncated, data: Data) -> Any:
    # Where nothing has a knot, only groups that may be anywhere are left to sort by.
    sorts = any(truncated) or data.groups is not None
    return _sorted_moments if sorts else _class_moments


# Compiled here, because hundreds of small operations would otherwise be sent one by one.
@partial(jax.jit, static_argnums=0)
def _value_and_grad(truncated: Truncated, x: Array, data: Data) -> tuple[Array, Array]:
    out: tuple[Array, Array] = _moments(truncated, data).value_and_grad(truncated, x, data)
    return out


@partial(jax.jit, static_argnums=0)
def _derivative_along(truncated: Truncated, x: Array, data: Data, z: Array) -> Array:
    # Compensated sums are linear in value only, so JAX could not transpose them. It is told that
    # this map is its own transpose, in the one form that it can also batch.
    def solve(_: Any, v: Array) -> Array:
        along: Array = _moments(truncated, data).derivative_along(truncated, x, data, v)
        return along

    out: Array = lax.custom_linear_solve(lambda v: v, z, solve, symmetric=True)
    return out


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def value(truncated: Truncated, x: Array, data: Data) -> Array:
    """Return the loss."""
    out: Array = _value_and_grad(truncated, x, data)[0]
    return out


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _gradient(truncated: Truncated, x: Array, data: Data) -> tuple[Array, Array]:
    out: tuple[Array, Array] = _value_and_grad(truncated, x, data)
    return out


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _product(truncated: Truncated, x: Array, data: Data, z: Array) -> Array:
    out: Array = _derivative_along(truncated, x, data, z)
    return out


@partial(value.defjvp, symbolic_zeros=True)
def _value_jvp(truncated: Truncated, primals: Any, tangents: Any) -> tuple[Array, Array]:
    x, data = primals
    out, grad = _gradient(truncated, x, data)
    z = _direction(x, *tangents)
    return out, jnp.zeros_like(out) if z is None else (grad * z).sum()


@partial(_gradient.defjvp, symbolic_zeros=True)
def _gradient_jvp(truncated: Truncated, primals: Any, tangents: Any) -> tuple[Any, Any]:
    x, data = primals
    out, grad = _gradient(truncated, x, data)
    z = _direction(x, *tangents)
    if z is None:
        return (out, grad), (jnp.zeros_like(out), jnp.zeros_like(grad))
    return (out, grad), ((grad * z).sum(), _product(truncated, x, data, z))


@partial(_product.defjvp, symbolic_zeros=True)
def _product_jvp(truncated: Truncated, primals: Any, tangents: Any) -> tuple[Array, Array]:
    x, data, z = primals
    out = _product(truncated, x, data, z)
    _direction(x, *tangents[:2])
    along = tangents[2]
    if isinstance(along, SymbolicZero):
        return out, jnp.zeros_like(out)
    return out, _product(truncated, x, data, along)


def _direction(x: Array, along: Any, of_data: Data) -> Array | None:
    """Return the direction in the scores, or None if there is none."""
    if not isinstance(of_data.weights, SymbolicZero | None):
        _raise_constant("weights")
    if not all(isinstance(part, SymbolicZero) for part in of_data.terms.shift):
        _raise_constant("margin")
    return None if isinstance(along, SymbolicZero) else along


def _raise_constant(name: str) -> None:
    raise ValueError(
        f"{name} must not be differentiated, because the loss has derivatives in the scores only; "
        f"got {name} with a derivative. Pass jax.lax.stop_gradient({name})."
    )
