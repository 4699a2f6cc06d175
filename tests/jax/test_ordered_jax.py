"""Ordered pairs, survival times and partial AUC in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import everypair as ep
from everypair.jax import pair_loss

from ..laws import ORDERED_LAWS
from .backends import JaxBackend, quick_laws

# Every combination of options compiles a program, so only some of the laws are tested.
NAMES = ("equals_the_double_sum", "order_of_rows", "partial_losses")
globals().update(
    {name: law for name, law in ORDERED_LAWS.items() if any(part in name for part in NAMES)}
)


@pytest.fixture(scope="module")
def backend():
    return JaxBackend()


@pytest.fixture(scope="module", autouse=True)
def fewer_examples():
    with quick_laws(25):
        yield


def table(n=40):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=n).astype(np.float32)
    return scores, rng.integers(0, 9, n).astype(np.float32), rng.random(n) < 0.6


def test_traced_targets_give_the_same_loss():
    scores, times, events = table()
    expected = ep.pair_loss(scores, times, pairs="ordered")
    traced = jax.jit(lambda x, y: pair_loss(x, y, pairs="ordered"))
    assert float(traced(scores, times)) == pytest.approx(expected, rel=1e-6)
    for censoring in ("harrell", "uno"):
        options = {"pairs": "survival", "censoring": censoring}
        expected = ep.pair_loss(scores, (times, events), **options)
        traced = jax.jit(lambda x, t, e, options=options: pair_loss(x, (t, e), **options))
        assert float(traced(scores, times, events)) == pytest.approx(expected, rel=1e-5)


def test_forms_of_survival_labels():
    scores, times, events = table()
    expected = ep.pair_loss(scores, (times, events), pairs="survival")
    columns = np.column_stack([times, events])
    signed = np.where(events, times, -times)
    for labels in ((times, events), columns, jnp.asarray(columns), signed, jnp.asarray(signed)):
        assert float(pair_loss(scores, labels, pairs="survival")) == pytest.approx(
            expected, rel=1e-6
        )
