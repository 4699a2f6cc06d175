"""The laws of the losses on arrays, and those of the AUC."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everypair import naive

from .laws import EXAMPLES, LAWS, ORDERED_LAWS
from .strategies import SMOOTH, SURROGATES, all_surrogates, batches, targets
from .tolerances import assert_close

globals().update(LAWS | ORDERED_LAWS)


@settings(max_examples=EXAMPLES)
@given(batch=st.one_of(batches(), targets()), average=st.sampled_from(["pairs", "groups", "rows"]))
def test_the_concordance_equals_the_double_sum(backend, batch, average):
    names = ("weights", "groups", "pairs", "censoring")
    knobs = {name: batch.knobs[name] for name in names if name in batch.knobs}
    if average != "pairs" and "pairs" in knobs:
        knobs["average"] = average
    try:
        expected = naive.auc(batch.scores, batch.labels, **knobs)
    except ValueError:
        with pytest.raises(ValueError, match=r"auc must have both classes|at least one pair"):
            backend.auc(batch.scores, batch.labels, **knobs)
        return
    assert_close(backend.auc(batch.scores, batch.labels, **knobs), expected, np.float64)


def test_the_generators_reach_every_kind_of_pair():
    reached = set()

    @settings(max_examples=EXAMPLES)
    @given(batch=batches(), surrogate=all_surrogates())
    def look(batch, surrogate):
        reached.add(surrogate.name)
        pos, neg = batch.scores[batch.positive], batch.scores[~batch.positive]
        if pos.size == 0 or neg.size == 0:
            reached.add("one class")
            return
        shortfall = batch.knobs["margin"] - (pos.astype(float)[:, None] - neg)
        kinds = {
            "active": shortfall > 0,
            "inactive": shortfall < 0,
            "on the knot": shortfall == 0,
            "on a shifted knot": shortfall == 0.5,
            "tied": pos[:, None] == neg,
        }
        reached.update(kind for kind, where in kinds.items() if where.any())
        reached.update(knob for knob in ("weights", "groups") if batch.knobs[knob] is not None)

    look()
    assert reached == {
        "active",
        "inactive",
        "on the knot",
        "on a shifted knot",
        "tied",
        "one class",
        "weights",
        "groups",
        *(surrogate.name for surrogate in (*SURROGATES, *SMOOTH)),
    }
