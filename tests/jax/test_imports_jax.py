"""The subpackage stays optional, and what imports what."""

from __future__ import annotations

import everypair.jax

from ..layers import Subpackage

# Each module may import from the subpackage only what stands here: downward.
MAY_IMPORT = {
    "_compensated": set(),
    "_sorted_moments": {"_compensated"},
    "_class_moments": {"_compensated", "_sorted_moments"},
    "_derivatives": {"_class_moments", "_sorted_moments"},
    "_inputs": {"_compensated", "_sorted_moments"},
    "_functional": {"_derivatives", "_inputs"},
    "__init__": {"_functional"},
}
# And from the layers below: the mathematics and the door for input.
FROM_THE_CORE = {"_inputs", "surrogates"}


class TestJax(Subpackage):
    module, needs, loads = everypair.jax, "JAX", ("jax",)
    may_import, from_the_core = MAY_IMPORT, FROM_THE_CORE
