"""Rows that a model was fitted on are recognised, in any order and among others."""

from __future__ import annotations

import numpy as np
import pytest

from everypair.experiments.seen_rows import SeenRows

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20_000, 5)).astype(np.float32)


def test_the_same_rows_are_seen_in_any_order():
    seen = SeenRows.of(X)
    assert len(seen.hashes) == 512
    assert seen.share(X) == seen.share(RNG.permutation(X)) == 1.0
    assert seen.share(X + np.float32(1e-6)) < 0.01


@pytest.mark.parametrize("n", [100, 20_000])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_the_share_of_seen_rows_is_estimated(n, share):
    new = RNG.normal(size=(20_000, 5))
    mixed = np.where(RNG.random((20_000, 1)) < share, X, new)
    assert SeenRows.of(X[:n]).share(mixed[:n]) == pytest.approx(share, abs=0.15)


def test_the_columns_and_the_sign_of_zero():
    assert SeenRows.of(X).share(X[:, ::-1]) == 0.0
    assert SeenRows.of(np.eye(3)).share(-np.eye(3) * -1.0) == 1.0
    assert SeenRows.of(np.array([[0.0], [1.0]])).share(np.array([[-0.0]])) == 1.0


def test_tables_with_many_equal_rows_are_not_recognised():
    few_values = RNG.integers(3, size=(1000, 2))
    assert SeenRows.of(few_values).share(few_values) == 0.0


def test_empty_tables():
    assert SeenRows().share(X) == 0.0
    assert SeenRows.of(X[:0]).share(X) == 0.0
    assert SeenRows.of(X).share(X[:0]) == 0.0
