"""Who is chosen, and the statistics of what the chosen ones reach."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from everypair.experiments.plan import FULL_BATCH, Cell, Record, Trial
from everypair.experiments.report import selection, tables
from everypair.experiments.report.selection import Comparison, Contender
from tests.experiments import made_up

CELL = Cell("digits", 0.1, "logistic", "sgd", 0)


def record(validation, test=0.7, *, batch=50, rate=0.1, state="finished", seed=0):
    trial = Trial(replace(CELL, seed=seed), batch, rate)
    return Record(trial, state, {}, 1, validation_auc=validation, test_auc=test)


def summary(*records):
    [only] = selection.summaries(selection.results(records))
    return only


def test_validation_chooses_and_test_is_reported():
    [result] = selection.results([record(0.8, 0.99), record(0.9, 0.6, rate=1.0)])
    assert (result.winner.trial.rate, result.winner.test_auc) == (1.0, 0.6)


def test_of_equal_ones_the_first_in_the_grid_wins():
    [result] = selection.results([record(0.9, 0.1, batch=500), record(0.9, 0.2, batch=50)])
    assert result.winner.test_auc == 0.1


def test_a_diverged_trial_competes_and_a_failed_one_does_not():
    tried = [record(0.8), record(0.9, 0.75, state="diverged"), record(0.95, state="failed")]
    [result] = selection.results(tried)
    assert result.winner.state == "diverged"


def test_a_cell_may_have_no_winner():
    lost = summary(record(math.nan, math.nan, state="diverged"), record(math.nan, state="failed"))
    assert lost.cells[0].winner is None
    assert lost.n == 0
    assert all(math.isnan(v) for v in (lost.mean, lost.sd, lost.batch, lost.rate))
    assert selection.standings([lost]) == []


def test_cells_do_not_compete_with_each_other():
    found = selection.results([record(0.8, seed=0), record(0.9, seed=1)])
    assert [result.cell.seed for result in found] == [0, 1]


def test_mean_and_standard_deviation_are_over_seeds():
    values = [0.7, 0.75, 0.9]
    s = summary(*made_up.simple(values))
    assert s.mean == pytest.approx(np.mean(values))
    assert s.sd == pytest.approx(np.std(values, ddof=1))
    assert s.n == 3


def test_one_seed_has_no_spread():
    s = summary(*made_up.simple([0.7]))
    assert s.mean == 0.7
    assert math.isnan(s.sd)


def test_medians_are_of_what_was_selected():
    chosen = [(50, 0.01), (50, 0.1), (500, 1.0)]
    s = summary(*(record(0.9, batch=b, rate=r, seed=k) for k, (b, r) in enumerate(chosen)))
    assert (s.batch, s.rate) == (50, 0.1)


def test_the_full_batch_is_the_largest():
    sizes = [50, FULL_BATCH, FULL_BATCH]
    assert summary(*(record(0.9, batch=b, seed=k) for k, b in enumerate(sizes))).batch == FULL_BATCH
    sizes = [50, 500, FULL_BATCH]
    assert summary(*(record(0.9, batch=b, seed=k) for k, b in enumerate(sizes))).batch == 500


def test_the_edge_of_the_rates_is_seen_from_three_rates_on():
    rates = (0.01, 0.1, 1.0)
    for best, at_edge in zip(rates, (1, 0, 1), strict=True):
        assert summary(*(record(0.9 - (r != best), rate=r) for r in rates)).n_at_edge == at_edge
    assert summary(record(0.8, rate=0.1), record(0.9, rate=1.0)).n_at_edge == 0


@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_intervals_are_those_of_a_paired_t_test_made_wider_for_overlapping_splits(n):
    rng = np.random.default_rng(n)
    ours, theirs = rng.uniform(0.6, 0.9, (2, n))
    records = made_up.simple(ours) + made_up.simple(theirs, "aucm", "pesg")
    [gap] = selection.differences(selection.summaries(selection.results(records)))
    expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    wider = np.sqrt(1 + n * selection.TEST_SHARE)
    half = wider * (expected.high - expected.low) / 2
    assert gap.interval == pytest.approx((gap.mean - half, gap.mean + half))
    assert gap.n == n
    assert gap.mean == pytest.approx(np.mean(ours - theirs))


def test_differences_are_paired_by_seed_whatever_the_order():
    records = made_up.simple([0.7, 0.8, 0.9]) + made_up.simple([0.69, 0.79, 0.89], "square")
    random.Random(0).shuffle(records)
    [gap] = selection.differences(selection.summaries(selection.results(records)))
    assert [abs(value) for value in gap.values] == pytest.approx([0.01] * 3)
    assert gap.verdict in ("first", "second")


def test_only_common_seeds_are_paired():
    records = made_up.simple([0.7, 0.8, 0.9]) + made_up.simple([0.6, 0.7], "square")
    [gap] = selection.differences(selection.summaries(selection.results(records)))
    assert gap.seeds == (0, 1)


@pytest.mark.parametrize(
    ("theirs", "verdict"),
    [
        ([0.60, 0.71, 0.79], "first"),
        ([0.80, 0.91, 0.99], "second"),
        ([0.60, 0.90, 0.88], "tie"),
        ([0.70, 0.80, 0.90], "tie"),  # the same to the last bit
        ([0.60], "unknown"),
        ([], "unknown"),
    ],
)
def test_verdicts(theirs, verdict):
    records = made_up.simple([0.7, 0.8, 0.9])
    records += made_up.simple(theirs, "square") or [
        Record(Trial(replace(CELL, loss="square"), 50, 0.1), "failed", {})
    ]
    [gap] = selection.differences(selection.summaries(selection.results(records)))
    assert gap.verdict == verdict
    assert (gap.interval is None) == (verdict == "unknown")


def test_everybody_is_compared_with_the_leader():
    records = [
        *made_up.simple([0.7, 0.8, 0.9]),
        *made_up.simple([0.75, 0.7, 0.9], "aucm", "pesg"),
        *made_up.simple([0.5, 0.61, 0.7], "square"),
    ]
    [place] = selection.standings(selection.summaries(selection.results(records)))
    assert place.leader == Contender("logistic", "sgd")
    assert place.where("tie") == (Contender("aucm", "pesg"),)
    assert place.where("first") == (Contender("square", "sgd"),)
    assert place.where("unknown") == ()


def test_the_made_up_study_has_what_a_report_must_cope_with():
    found = selection.summaries(
        selection.results(made_up.records(*made_up.paper_grids(2), epochs=3))
    )
    assert len(found) == 27
    assert [s.comparison for s in found[::3]][:2] == [
        Comparison("cifar10", 0.1),
        Comparison("cifar10", 0.01),
    ]
    assert {gap.verdict for gap in selection.differences(found)} >= {"tie", "first"}
    assert any(s.count("diverged") for s in found)
    assert any(s.n_at_edge for s in found)


def test_points_of_the_grid_count_every_trial():
    s = selection.summaries(selection.results(made_up.records(made_up.grid())))[0]
    points = tables.grid_points(s)
    assert [(p["batch"], p["rate"]) for p in points][:2] == [(50, 0.003), (50, 0.03)]
    assert sum(p["n_chosen"] for p in points) == s.n
    assert sum(p["n_lost"] for p in points) == s.count("diverged") > 0


def test_freely_drawn_rates_are_gathered_by_half_decades():
    rates = [0.001 * 1.3**k for k in range(20)]
    points = tables.grid_points(summary(*(record(0.9, rate=rate) for rate in rates)))
    assert len(points) < 8
    assert sum(p["n"] for p in points) == 20
