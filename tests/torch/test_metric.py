"""AUCMetric and PairMetric: the values of all batches equal those of the functions on arrays."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch

import everypair as ep
from everypair import naive
from everypair.torch import AUCMetric

RNG = np.random.default_rng(0)
N = 120
SCORES = np.round(RNG.normal(size=N), 1)
WEIGHTS, GROUPS = RNG.random(N), RNG.integers(0, 7, N)
TIMES, EVENTS = RNG.integers(1, 30, N).astype(float), RNG.random(N) < 0.6
LABELS = {
    "binary": RNG.integers(0, 2, N),
    "ordered": RNG.integers(0, 5, N),
    "survival": np.column_stack([TIMES, EVENTS]),
}


def fed(metric, pairs, *, size=50, weights=None, groups=None):
    """Return the metric after batches of this size."""
    data = [None if a is None else torch.tensor(a) for a in (weights, groups)]
    scores, labels = torch.tensor(SCORES), torch.tensor(LABELS[pairs])
    for rows in torch.arange(N).split(size):
        metric.update(scores[rows], labels[rows], *(None if t is None else t[rows] for t in data))
    return metric


KINDS = [{"pairs": pairs, "average": by} for pairs in LABELS for by in ("pairs", "groups", "rows")]


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weights"])
@pytest.mark.parametrize("options", [*KINDS, {"pairs": "survival", "censoring": "uno"}], ids=str)
def test_equals_the_double_sum_over_all_batches(options, weights):
    metric = fed(AUCMetric(**options), options["pairs"], weights=weights, groups=GROUPS)
    expected = naive.auc(
        SCORES, LABELS[options["pairs"]], weights=weights, groups=GROUPS, **options
    )
    assert metric.compute().item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("rates", [{"max_fpr": 0.2}, {"max_fpr": 0.6, "min_tpr": 0.3}])
def test_partial_auc(rates, standardise):
    metric = fed(AUCMetric(**rates, standardise=standardise), "binary")
    expected = ep.partial_auc(SCORES, LABELS["binary"], **rates, standardise=standardise)
    assert metric.compute().item() == pytest.approx(expected, rel=1e-12)


def test_several_tasks_have_the_mean_of_those_with_pairs():
    scores = torch.tensor(RNG.normal(size=(40, 3)))
    labels = torch.tensor(RNG.integers(0, 2, (40, 3))).double()
    labels[::4, 0] = torch.nan  # missing
    labels[:, 2] = 1.0  # one class
    metric = AUCMetric()
    for rows in (slice(0, 10), slice(10, 40)):
        metric.update(scores[rows], labels[rows])
    known = ~labels[:, 0].isnan()
    aucs = [ep.auc(scores[known, 0], labels[known, 0]), ep.auc(scores[:, 1], labels[:, 1])]
    assert metric.compute().item() == pytest.approx(np.mean(aucs))


def test_merge_reset_and_call():
    whole = fed(AUCMetric(), "binary")
    parts = [AUCMetric(), AUCMetric()]
    scores, labels = torch.tensor(SCORES), torch.tensor(LABELS["binary"])
    values = [part(scores[i::2], labels[i::2]) for i, part in enumerate(parts)]
    assert values[1].item() == ep.auc(SCORES[1::2], LABELS["binary"][1::2])
    received = pickle.loads(pickle.dumps(parts[1]))  # as from another rank
    merged = copy.deepcopy(parts[0])
    merged.merge(received)
    assert merged.compute() == whole.compute()
    assert parts[0].compute() == values[0]
    merged.reset()
    with pytest.raises(ValueError, match=r"at least one batch; call update\(\) first"):
        merged.compute()
    with pytest.raises(ValueError, match="same options to be merged"):
        whole.merge(AUCMetric(average="groups"))


def test_the_value_keeps_no_graph_and_is_nan_without_pairs():
    metric = AUCMetric()
    assert repr(metric).startswith("AUCMetric(average='pairs', pairs='binary', censoring=")
    scores = torch.tensor([0.1, 0.7], requires_grad=True)
    assert math.isnan(metric(scores, torch.tensor([1, 1])))
    value = metric(scores, torch.tensor([0, 1]))
    assert (value.item(), value.requires_grad, value.dtype) == (1.0, False, torch.float64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"average": "users"}, "average must be one of"),
        ({"pairs": "all"}, "pairs must be 'binary'"),
        ({"censoring": "uno"}, "censoring must be left out"),
        ({"max_fpr": 0.0}, "max_fpr must be a number above 0"),
        ({"min_tpr": 1.0}, "min_tpr must be a number at least 0"),
        ({"process_group": "all"}, "process_group must be a ProcessGroup, 'world' or None"),
        ({"pairs": "ordered", "max_fpr": 0.5}, "max_fpr and min_tpr must be left out"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        AUCMetric(**options)


PAIR_METRICS = {"exact": {"max_fpr": 0.3}, "bounded": {"mode": "bounded", "max_fpr": 0.3}}


def fed_pair_metric(mode, rows):
    pair_metric = pytest.importorskip("everypair.torch.metrics", reason="needs torchmetrics")
    metric = pair_metric.PairMetric(**PAIR_METRICS[mode])
    for part in rows.split(25):
        metric.update(torch.tensor(SCORES)[part], torch.tensor(LABELS["binary"])[part])
    return metric


@pytest.mark.parametrize("mode", PAIR_METRICS)
def test_pair_metric_equals_the_functions_of_arrays(mode):
    metric = fed_pair_metric(mode, torch.arange(N))
    values = {name: value.item() for name, value in metric.compute().items()}
    data = (SCORES, LABELS["binary"])
    bound, rough = values["auc_bound"], 1e-2 if mode == "bounded" else 1e-15
    assert mode == "bounded" or bound == 0.0
    assert values["auc"] == pytest.approx(ep.auc(*data), abs=bound + 1e-15)
    assert values["partial_auc"] == pytest.approx(ep.partial_auc(*data, max_fpr=0.3), abs=rough)
    assert values["squared_hinge"] == pytest.approx(ep.pair_loss(*data), rel=1e-5)
    interval = ep.delong(*data)
    bounds = (interval.low, interval.high)
    assert (values["auc_low"], values["auc_high"]) == pytest.approx(bounds, abs=2 * bound + 1e-12)
    metric.reset()
    metric.update(*(torch.tensor(column[:10]) for column in data))
    expected = ep.auc(*(column[:10] for column in data))
    assert metric.compute()["auc"].item() == pytest.approx(expected, abs=1e-2)


def _of_rank(rank, options, wrong):
    """Return the value over all ranks, of which the last two have no rows, or the error."""
    metric = AUCMetric(**options, process_group="world")
    y = torch.tensor(LABELS[options.get("pairs", "binary")])
    for part in np.array_split(np.arange(N)[rank::2], 3) if rank < 2 else ():
        scores = torch.tensor(SCORES[part]) * (torch.nan if wrong and rank == 1 else 1.0)
        metric.update(scores, y[part], torch.tensor(WEIGHTS[part]), torch.tensor(GROUPS[part]))
    try:
        return metric.compute().item()
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(
    "options", [{}, {"pairs": "ordered", "average": "rows"}, {"max_fpr": 0.3}], ids=str
)
def test_the_value_over_all_ranks_is_that_of_one_process(pool, options):
    kind = options.get("pairs", "binary")
    whole = fed(AUCMetric(**options), kind, weights=WEIGHTS, groups=GROUPS)
    found = pool.run(_of_rank, range(4), [options] * 4, [False] * 4)
    assert found == [pytest.approx(whole.compute().item(), rel=1e-12)] * 4


def test_an_error_of_a_metric_is_raised_on_all_ranks(pool):
    for error in pool.run(_of_rank, range(4), [{}] * 4, [True] * 4):
        assert "scores must be finite" in error


def _pair_metric_of_rank(rank, mode):
    rows = torch.arange(N)[35 * rank : 35 * rank + 35]  # the last rank has fewer
    return {name: v.item() for name, v in fed_pair_metric(mode, rows).compute().items()}


@pytest.mark.parametrize("mode", PAIR_METRICS)
def test_pair_metrics_over_all_ranks_are_those_of_one_process(pool, mode):
    expected = fed_pair_metric(mode, torch.arange(N)).compute()
    expected = {name: value.item() for name, value in expected.items()}
    assert pool.run(_pair_metric_of_rank, range(4), [mode] * 4) == [expected] * 4
