"""everypair for JAX.

>>> import jax.numpy as jnp
>>> from everypair.jax import pair_loss
>>> float(pair_loss(jnp.array([0.9, 0.2, 0.6]), jnp.array([1, 0, 0]), margin=0.5)) < 0.03
True
"""

try:
    import jax  # noqa: F401
except ImportError as error:
    raise ImportError(
        "everypair.jax needs JAX. In a checkout of everypair: pip install '.[jax]'"
    ) from error

from everypair.jax._functional import pair_loss

__all__ = ["pair_loss"]
