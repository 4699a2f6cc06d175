"""The benchmark of ordered and survival objectives: its data, and the committed rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("xgboost")

from benchmarks.rows import ROOT
from studies.order_evidence import ranking, report, survival


def read(name):
    return pd.read_csv(report.FOLDER / f"{name}.csv")


def test_ranking_data_are_one_linear_signal_with_noise():
    for noise in ranking.NOISE:
        train, valid, test = ranking.make(noise, 0)
        assert [len(part.y) for part in (train, valid, test)] == [4000, 2000, 4000]
        weights = np.linalg.lstsq(train.X, train.signal, rcond=None)[0]
        np.testing.assert_allclose(test.X @ weights, test.signal, atol=1e-9)
        assert np.std(np.sort(train.y - train.signal)[40:-40]) > 0.8


def test_ranking_rows_are_complete():
    rows = read("ranking")
    seeds = rows.groupby(["noise", "method"])["seed"].apply(sorted)
    assert set(seeds.index) == {(n, m) for n in ranking.NOISE for m in ranking.METHODS}
    assert all(each == list(range(ranking.SEEDS)) for each in seeds)


def test_survival_rows_are_complete():
    rows = read("survival")
    splits = rows.groupby(["data", "family", "method"])["split"].apply(sorted)
    expected = {(d, f, m) for d in survival.DATA for f, ms in survival.FAMILIES.items() for m in ms}
    assert set(splits.index) == expected
    assert all(each == list(range(survival.SPLITS)) for each in splits)


@pytest.mark.parametrize("name", report.PAGES)
def test_the_page_shows_the_rows(name):
    page = (ROOT / "docs" / report.PAGES[name]).read_text()
    assert getattr(report, name)(read(name)) in page


def test_points_is_the_interval_of_the_mean():
    # 4.3027 is the 97.5 % quantile of t with 2 degrees of freedom.
    half = 100 * 4.3027 * np.std([0.01, 0.02, 0.03], ddof=1) / np.sqrt(3)
    assert report.points(pd.Series([0.01, 0.02, 0.03])) == f"+2.0 ± {half:.1f}"
