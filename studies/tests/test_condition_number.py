"""L-BFGS and SGD on badly conditioned columns: the rows are complete, and equal a repeated run."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

pytest.importorskip("torch")

from studies import condition_number as study


def test_every_method_has_the_same_rates_on_every_seed():
    keys = [(r.condition, r.seed, r.method, r.rate) for r in study.read()]
    expected = product(study.CONDITIONS, study.SEEDS, study.METHODS, study.RATES)
    assert keys == list(expected)


@pytest.mark.parametrize("condition", study.CONDITIONS)
def test_the_covariance_has_the_condition_number(condition):
    (X, positive), *_ = study.data(condition, seed=0)
    scales = X.std(axis=0)
    assert (scales[0] / scales[-1]) ** 2 == pytest.approx(condition, rel=0.1)
    unscaled = study.data(1.0, seed=0)[0][0]
    np.testing.assert_allclose(X / scales, unscaled / unscaled.std(axis=0))
    assert positive.mean() == 0.1


def test_the_pages_say_where_l_bfgs_is_ahead():
    for method, expected in (("all rows", {1e6, 1e8}), ("batches of 100", {1e4, 1e6, 1e8})):
        ahead = {c for c in study.CONDITIONS if study.lead(c, f"SGD, {method}")[1] > 0}
        assert ahead == expected
        best = study.chosen(study.read())
        chosen = {r.rate for c in (1e4, 1e6, 1e8) for r in best[c, f"SGD, {method}"]}
        assert chosen <= set(study.RATES[1:-1])


def test_the_rows_are_repeatable(monkeypatch):
    monkeypatch.setattr(study, "RATES", (0.1,))
    for row in study.measure(1e4, seed=0):
        (old,) = [r for r in study.read() if vars(r) | {**_RESULTS} == vars(row) | {**_RESULTS}]
        assert row.test_auc == pytest.approx(old.test_auc, abs=1e-4)
        assert old.passes <= study.PASSES + 25  # a line search ends after at most 25 evaluations


_RESULTS = dict.fromkeys(("passes", "loss", "validation_auc", "test_auc"), 0)
