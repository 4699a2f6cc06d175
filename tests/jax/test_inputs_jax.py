"""Which arguments of the JAX loss are accepted, and the errors for the others."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from everypair.jax import pair_loss

SCORES = jnp.array([0.5, 2.0, 0.0, 1.0])
LABELS = jnp.array([1, 1, 0, 0])


@pytest.mark.parametrize(
    "labels",
    [
        [1, 1, 0, 0],
        np.array([1, 1, -1, -1], np.int8),
        jnp.array([True, True, False, False]),
        jnp.array([[1.0], [1.0], [0.0], [0.0]]),
    ],
    ids=["list", "minus one", "bool", "column"],
)
def test_every_coding_of_labels(labels):
    assert float(pair_loss(SCORES, labels)) == 0.625
    assert float(jax.jit(pair_loss)(SCORES, jnp.asarray(labels))) == 0.625


WRONG = {
    "scores must be floats": {"scores": jnp.arange(4)},
    "scores must have the shape (n,) or (n, 1); got (4, 2)": {"scores": jnp.ones((4, 2))},
    "scores must have the shape (n,) or (n, 1); got (1, 4, 1)": {"scores": jnp.ones((1, 4, 1))},
    "scores must hold at least one row": {"scores": jnp.ones(0)},
    "scores must be real numbers; got an array of <U4": {"scores": "high"},
    "labels must be real numbers; got an array of <U3": {"labels": ["no", "yes"] * 2},
    "labels must have the shape (4,), one entry per score; got (3,)": {"labels": LABELS[:3]},
    "labels must be real numbers": {"labels": LABELS * 1j},
    "weights must have the shape (4,)": {"weights": jnp.ones((4, 2))},
    "groups must be whole numbers": {"groups": jnp.ones(4)},
    "groups must have the shape (4,)": {"groups": [1, 2]},
    "margin must be a finite number of at least 0": {"margin": -1.0},
    "surrogate must be one of": {"surrogate": "hinge"},
    "reduction must be 'mean'": {"reduction": "none"},
}


# Values that are known only outside a traced function.
WRONG_VALUES = {
    "scores must be finite; got nan": {"scores": jnp.array([0.5, jnp.nan, 0.0, 1.0])},
    "got 2 (first at index 1)": {"labels": jnp.array([1, 2, 0, 0])},
    "not a mix": {"labels": jnp.array([1, -1, 0, 0])},
    "weights must be finite and at least 0": {"weights": jnp.array([1.0, 1.0, -1.0, 1.0])},
    "pairs='ordered'": {"labels": [0, 1, 2, 0]},
    "got nan (first at index 1)": {"labels": [0.0, np.nan, 2.0, 0.0], "pairs": "ordered"},
    "pairs must be": {"pairs": "all"},
    "left out": {"pairs": "ordered", "max_fpr": 0.5},
    "events of labels must be 1": {"labels": ([1, 2, 3, 4], [0, 1, 2, 0]), "pairs": "survival"},
    "labels must have one entry per": {"labels": ([1, 2], [0, 1]), "pairs": "survival"},
}


@pytest.mark.parametrize("message", WRONG_VALUES)
def test_values_are_refused_where_they_are_known(message):
    given = {"scores": SCORES, "labels": LABELS, **WRONG_VALUES[message]}
    with pytest.raises(ValueError, match=re.escape(message)):
        pair_loss(**given)


def test_labels_are_checked_under_grad():
    with pytest.raises(ValueError, match="labels must hold two classes"):
        jax.grad(pair_loss)(SCORES, LABELS + 1)


def test_a_traced_margin_is_one_number():
    loss = jax.jit(lambda margin: pair_loss(SCORES, LABELS, margin=margin))
    assert float(loss(1.0)) == 0.625
    with pytest.raises(ValueError, match="margin must be one number"):
        loss(jnp.ones(2))


@pytest.mark.parametrize("message", WRONG)
def test_types_and_shapes_are_refused_while_tracing(message):
    given = {"scores": SCORES, "labels": LABELS, **WRONG[message]}
    with pytest.raises(ValueError, match=re.escape(message)):
        pair_loss(**given)
    arrays = {k: v for k, v in given.items() if isinstance(v, jax.Array)}
    rest = {k: v for k, v in given.items() if k not in arrays}
    with pytest.raises(ValueError, match=re.escape(message)):
        jax.eval_shape(lambda arrays: pair_loss(**arrays, **rest), arrays)


def test_whole_numbers_that_float32_rounds_keep_their_order():
    large = np.array([2**40, 2**40 + 1, 2**40 + 2])
    for labels, pairs in ((large, "ordered"), ((large, [1, 1, 1]), "survival")):
        values = [
            float(pair_loss(scores, labels, pairs=pairs)) for scores in ([0.0, 1, 2], [2.0, 1, 0])
        ]
        assert sorted(values) == [0.0, pytest.approx(17 / 3)]
    assert float(pair_loss(SCORES, LABELS, weights=[2**40] * 4)) == 0.625


def test_values_that_are_not_known_do_no_harm():
    loss = jax.jit(pair_loss)
    assert jnp.isnan(loss(SCORES.at[1].set(jnp.inf), LABELS))
    assert float(loss(SCORES, LABELS * 3)) == 0.625


def test_groups_of_any_kind():
    for groups in (["a", "b", "a", "b"], np.array([0, 2**40, 0, 2**40]), jnp.array([5, 6, 5, 6])):
        assert float(pair_loss(SCORES, LABELS, groups=groups)) == 0.125
