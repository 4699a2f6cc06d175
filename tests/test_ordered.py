"""Ordered targets, survival times and partial AUC: forms of input, errors, other libraries."""

from __future__ import annotations

import contextlib

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau, somersd

import everypair as ep
from everypair import naive
from everypair.inputs.ranked import RankedRows, levels
from everypair.kernel import choose

from .tolerances import assert_close

RNG = np.random.default_rng(0)
TIMES, EVENTS = np.array([5.0, 3.0, 9.0, 3.0]), np.array([True, False, True, True])
RISKS = np.array([0.5, 0.1, 0.9, 0.2])


def structured(event, time, names=("event", "time")):
    out = np.empty(len(time), [(names[0], bool), (names[1], float)])
    out[names[0]], out[names[1]] = event, time
    return out


def test_correlations_of_ranks():
    x, y = RNG.normal(size=(2, 500))
    assert 2 * ep.auc(x, y, pairs="ordered") - 1 == pytest.approx(kendalltau(x, y).statistic)
    x, y = RNG.integers(0, 6, (2, 300))
    assert 2 * ep.auc(x, y, pairs="ordered") - 1 == pytest.approx(somersd(y, x).statistic)


def survival_tables(datasets):
    """Yield scores and labels with ties in all of them, and without; then real data."""
    for n, grid in [(30, 4), (200, 10), (300, 100_000)]:
        for rate in (0.2, 0.7, 1.0):
            times, events = 1.0 + RNG.integers(0, grid, n), RNG.random(n) < rate
            yield RNG.integers(0, grid, n) / 8.0, structured(events, times)
    for load in (datasets.load_gbsg2, datasets.load_veterans_lung_cancer, datasets.load_whas500):
        table, labels = load()
        yield table.select_dtypes("number").to_numpy(float)[:, 0], labels


@pytest.mark.parametrize("backend_name", ["numpy", "auto"])
def test_indices_equal_those_of_other_libraries(backend_name):
    metrics = pytest.importorskip("sksurv.metrics")
    lifelines = pytest.importorskip("lifelines.utils")
    for scores, y in survival_tables(pytest.importorskip("sksurv.datasets")):
        events, times = (np.ascontiguousarray(y[field]) for field in y.dtype.names)
        with choose.backend(backend_name):
            got = ep.auc(scores, y, pairs="survival")
            uno = ep.auc(scores, y, pairs="survival", censoring="uno")
        assert got == pytest.approx(lifelines.concordance_index(times, -scores, events), rel=1e-12)
        expected = metrics.concordance_index_censored(events, times, scores)[0]
        assert got == pytest.approx(expected, rel=1e-12)
        assert got == pytest.approx(naive.auc(scores, y, pairs="survival"), rel=1e-12)
        # It refuses an event at a time from which on all rows are censored.
        with contextlib.suppress(ValueError):
            assert uno == pytest.approx(metrics.concordance_index_ipcw(y, y, scores)[0], rel=1e-12)


FORMS = {
    "columns": np.column_stack([TIMES, EVENTS]),
    "list of rows": [list(row) for row in zip(TIMES.tolist(), EVENTS.tolist(), strict=True)],
    "tuple": (TIMES, EVENTS),
    "tuple of lists": (TIMES.tolist(), EVENTS.astype(int).tolist()),
    "event first": structured(EVENTS, TIMES),
    "time first": structured(EVENTS, TIMES)[["time", "event"]],
    "other names": structured(EVENTS, TIMES, ("Status", "Survival_in_days")),
    "signed": np.where(EVENTS, TIMES, -TIMES),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms_of_survival_labels(form):
    expected = ep.pair_loss(RISKS, FORMS["columns"], pairs="survival")
    assert ep.pair_loss(RISKS, form, pairs="survival") == expected
    assert naive.pair_loss(RISKS, form, pairs="survival") == pytest.approx(expected)


def test_pairs_of_survival_times_by_hand():
    # The event at 3 comes before all other rows; the event at 5 before 9.
    pairs = [(3, 1), (3, 0), (3, 2), (0, 2)]
    t = np.array([1.0 - (RISKS[i] - RISKS[j]) for i, j in pairs])
    expected = float((np.maximum(t, 0.0) ** 2).mean())
    assert ep.pair_loss(RISKS, (TIMES, EVENTS), pairs="survival") == pytest.approx(expected)


def test_a_censored_time_of_zero_has_a_sign():
    assert ep.auc([1.0, 0.0], [0.0, -0.0], pairs="survival") == 1.0


BAD = {
    "three values": ({"labels": [0, 1, 2]}, "pairs='ordered'"),
    "times with events": ({"labels": structured(EVENTS[:3], TIMES[:3])}, "pairs='survival'"),
    "pairs": ({"labels": [0, 1, 2], "pairs": "all"}, "pairs must be 'binary'"),
    "censoring": ({"pairs": "survival", "censoring": "none"}, "censoring must be 'harrell'"),
    "censoring of grades": ({"pairs": "ordered", "censoring": "uno"}, "censoring must be left out"),
    "missing": ({"labels": [0, np.nan, 2], "pairs": "ordered"}, "nan .first at index 1"),
    "strings": ({"labels": ["a", "b", "c"], "pairs": "ordered"}, "real numbers"),
    "length": ({"labels": [0, 1], "pairs": "ordered"}, "got 2 for 3 scores"),
    "events": ({"labels": ([1, 2, 3], [1, 2, 0]), "pairs": "survival"}, "events of labels"),
    "events as text": (
        {"labels": pd.DataFrame({"t": [1.0, 2, 3], "e": ["y", "n", "y"]}), "pairs": "survival"},
        "events of labels must be 1 .an event. or 0 .censored.; got 'y' .first at index 0.",
    ),
    "event before time": (
        {"labels": pd.DataFrame({"e": [True, False, True], "t": [1.0, 2, 3]}), "pairs": "survival"},
        r"got 2.0 .first at index 1.. Pass .time, event. columns",
    ),
    "times": ({"labels": ([1, -2, 3], [1, 1, 0]), "pairs": "survival"}, "at least 0; got -2.0"),
    "lengths": ({"labels": ([1, 2, 3], [1, 0]), "pairs": "survival"}, "one event per time"),
    "three columns": ({"labels": np.ones((3, 3)), "pairs": "survival"}, "times and events"),
    "fields": (
        {"labels": np.zeros(3, [("a", float), ("b", float)]), "pairs": "survival"},
        "one field of bools",
    ),
    "weights": ({"pairs": "ordered", "weights": [1, -1, 1]}, "weights must be finite"),
    "scores": ({"scores": [0, np.inf, 1], "pairs": "ordered"}, "inf .first at index 1"),
    "partial": ({"pairs": "ordered", "max_fpr": 0.5}, "max_fpr and min_tpr must be left out"),
    "max_fpr": ({"labels": [0, 1, 1], "max_fpr": 1.5}, "max_fpr must be a number at least 0"),
    "text max_fpr": ({"labels": [0, 1, 1], "max_fpr": "0.5"}, "max_fpr must be a number"),
    "min_tpr": ({"labels": [0, 1, 1], "min_tpr": 1.0}, "min_tpr must be a number at least 0"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_wrong_arguments(arguments, message):
    given = {"scores": [0.5, 0.1, 0.3], "labels": [1.0, 2.0, 3.0], **arguments}
    with pytest.raises(ValueError, match=message):
        ep.pair_loss(given.pop("scores"), given.pop("labels"), **given)


def test_levels_without_pairs_are_skipped():
    # The ranks 0, 2 and 4 would need three levels; dense ranks 0, 1 and 2 need two.
    def positive(targets, groups=None):
        rows = RankedRows(np.array(targets), None, groups, None, None).rows
        return [level.tolist() for level, _ in levels(rows.ranks, rows.offsets)]

    assert positive([0, 0, 20, 40]) == [[False, False, False, True], [False, False, True, False]]
    assert positive(np.zeros(5)) == positive(np.arange(6), np.arange(6)) == []


def test_one_query_of_many_rows_beside_many_of_two():
    groups = np.concatenate([np.zeros(100, int), np.repeat(np.arange(1, 300), 2)])
    x, y = RNG.normal(size=(2, groups.size))
    knobs = {"groups": groups, "pairs": "ordered"}
    got, expected = (f(x, y, **knobs) for f in (ep.pair_loss_and_grad, naive.pair_loss_and_grad))
    for result, value in zip(got, expected, strict=True):
        assert_close(result, value, np.float64)


def test_a_false_positive_rate_of_zero_keeps_the_highest_negative():
    x, y = RNG.normal(size=50), RNG.random(50) < 0.3
    shortfalls = 1.0 - (x[y] - x[~y].max())
    expected = (np.maximum(shortfalls, 0.0) ** 2).mean()
    assert ep.pair_loss(x, y, max_fpr=0.0) == pytest.approx(expected)


@pytest.mark.parametrize("backend_name", ["numpy", "auto"])
def test_unos_weights_do_not_cancel(backend_name):
    rng = np.random.default_rng(0)
    for n in range(2, 60):
        x, times, events = rng.normal(size=n), rng.integers(1, 8, n), rng.random(n) < 0.6
        weights = rng.random(n) * 10.0 ** rng.integers(-30, 30, n)
        knobs = {"weights": weights, "pairs": "survival", "censoring": "uno"}
        expected = naive.pair_loss(x, (times, events), **knobs)
        with choose.backend(backend_name):
            got = ep.pair_loss(x, (times, events), **knobs)
        assert got == pytest.approx(expected, rel=1e-13)


def test_a_perfect_order_has_an_auc_of_one_at_most():
    rng = np.random.default_rng(0)
    for n in range(20, 520, 10):
        labels, weights = np.arange(n) % 3 == 0, rng.random(n)
        scores = 2.0 * labels + rng.random(n)
        times, events = rng.exponential(size=n), rng.random(n) < 0.5
        for area in (
            ep.auc(scores, labels, weights=weights),
            ep.delong(scores, labels, weights=weights).auc,
            ep.auc(-times, (times, events), pairs="survival", censoring="uno"),
        ):
            assert 1 - 1e-12 < area <= 1.0
