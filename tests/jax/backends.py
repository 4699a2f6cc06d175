"""everypair.jax behind the methods that the laws ask for: NumPy arrays in and out."""

from __future__ import annotations

from contextlib import contextmanager
from operator import is_not

import jax
import jax.numpy as jnp
import numpy as np

from everypair.jax import pair_loss

from ..laws import examples_over

# Every shape compiles a new program, so batches are padded with rows of weight zero.
ROWS = 192
AT_ONCE = 20


@contextmanager
def quick_compilation():
    """Compile without most optimisations, which takes half the time.

    `test_accuracy_jax.py` tests programs as users compile them.
    """
    name = "jax_disable_most_optimizations"
    jax.config.update(name, True)
    try:
        yield
    finally:
        jax.config.update(name, False)


@contextmanager
def quick_laws(fewer):
    """Try one in `fewer` of the examples, and compile quickly."""
    with quick_compilation(), examples_over(fewer):
        yield


class JaxBackend:
    """float32 batches without x64, as most people run JAX; float64 ones with it."""

    smooth_names = ("logistic",)

    def __init__(self, *, fewer_programs=False):
        self._last = None, None
        self._fewer_programs = fewer_programs

    def _filled(self, scores, labels, knobs):
        one_group = self._fewer_programs and scores.dtype == np.float64
        return filled(scores, labels, knobs, one_group)

    def loss(self, scores, labels, **knobs):
        x64, scores, labels, knobs = self._filled(scores, labels, knobs)
        with jax.enable_x64(x64):
            return float(pair_loss(scores, labels, **knobs))

    def loss_and_grad(self, scores, labels, **knobs):
        n = len(scores)
        x64, scores, labels, knobs = self._filled(scores, labels, knobs)
        with jax.enable_x64(x64):
            value, grad = jax.value_and_grad(pair_loss)(scores, labels, **knobs)
            return float(value), np.asarray(grad)[:n]

    def derivatives(self, scores, labels, **knobs):
        n = len(scores)
        value, grad, times_hessian = self._graph(scores, labels, knobs)
        return value, grad[:n], np.diagonal(times_hessian(np.eye(n, ROWS))).copy()

    def hvp(self, scores, labels, vector, **knobs):
        n = len(scores)
        filled_up = np.zeros((1, ROWS))
        filled_up[0, :n] = vector
        return self._graph(scores, labels, knobs)[2](filled_up)[0, :n]

    def _graph(self, scores, labels, knobs):
        # Laws ask for several products with one Hessian, so its graph is built once.
        asked = [scores, labels, *knobs, *knobs.values()]
        known, graph = self._last
        if known is None or len(known) != len(asked) or any(map(is_not, known, asked)):
            graph = self._new_graph(scores, labels, knobs)
            self._last = asked, graph
        return graph

    def _new_graph(self, scores, labels, knobs):
        x64, scores, labels, knobs = self._filled(scores, labels, knobs)

        def value_and_grad(x):
            return jax.value_and_grad(pair_loss)(x, labels, **knobs)

        with jax.enable_x64(x64):
            (value, grad), pull = jax.vjp(value_and_grad, jnp.asarray(scores))
            products = jax.vmap(lambda v: pull((jnp.zeros_like(value), v))[0])

        def times_hessian(vectors):
            out = np.empty(vectors.shape, scores.dtype)
            for i in range(0, len(vectors), AT_ONCE):
                some = np.zeros((AT_ONCE, ROWS), scores.dtype)
                some[: len(vectors) - i] = vectors[i : i + AT_ONCE]
                with jax.enable_x64(x64):
                    out[i : i + AT_ONCE] = np.asarray(products(some))[: len(vectors) - i]
            return out

        return float(value), np.asarray(grad), times_hessian


def filled(scores, labels, knobs, one_group):
    """Fill up a batch with rows without weight, in any group.

    With `one_group`, a batch without groups is one group, so that fewer programs are compiled.
    """
    n, knobs = len(scores), dict(knobs)
    weights = np.zeros(ROWS)
    weights[:n] = 1.0 if knobs.get("weights") is None else knobs["weights"]
    knobs["weights"] = weights
    if knobs.get("groups") is not None:
        knobs["groups"] = np.resize(np.asarray(knobs["groups"], np.int32), ROWS)
    elif one_group:
        knobs["groups"] = np.zeros(ROWS, np.int32)
    if knobs.get("pairs", "binary") == "binary":
        target = np.zeros(ROWS, bool)
        target[:n] = np.asarray(labels) == 1
    else:
        target = np.resize(labels, (ROWS, *labels.shape[1:]))
    return scores.dtype == np.float64, np.resize(scores, ROWS), target, knobs
