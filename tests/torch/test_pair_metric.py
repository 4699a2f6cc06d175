"""The metric for TorchMetrics: the same on one process, and over all rows of several."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import everypair as ep

pytest.importorskip("torchmetrics")
from everypair.torch.metrics import PairMetric
from tests.torch.rank_pool import RankPool


def rows():
    both = np.random.default_rng(0).normal(size=(90, 2))
    labels = torch.tensor(both[:, 1] > 0.5)
    return torch.tensor(both[:, 0], dtype=torch.float32) + labels, labels


@pytest.mark.parametrize("mode", ["exact", "bounded"])
def test_equals_the_functions_of_arrays(mode):
    scores, labels = rows()
    metric = PairMetric(mode=mode, max_fpr=0.3)
    for part in torch.arange(90).split(40):
        metric.update(scores[part], labels[part])
    values = metric.compute()
    bound = values["auc_bound"].item()
    assert mode == "bounded" or bound == 0.0
    assert values["auc"].item() == pytest.approx(ep.auc(scores, labels), abs=bound + 1e-15)
    expected = ep.partial_auc(scores, labels, max_fpr=0.3)
    assert values["partial_auc"].item() == pytest.approx(expected, abs=1e-2 * bool(bound) + 1e-15)
    expected = ep.pair_loss(scores, labels)
    assert values["squared_hinge"].item() == pytest.approx(expected, rel=1e-5)
    assert values["auc_low"] < values["auc"] < values["auc_high"]
    metric.reset()
    metric.update(scores[:10], labels[:10])
    expected = ep.auc(scores[:10], labels[:10])
    assert metric.compute()["auc"].item() == pytest.approx(expected, abs=1e-2)


def _of_all_ranks(rank):
    scores, labels = rows()
    mine = torch.arange(90)[60 * rank : 60 * rank + 60]  # uneven: 60 and 30 rows
    values = []
    for mode in ("exact", "bounded"):
        metric = PairMetric(mode=mode, max_fpr=0.3)
        for part in mine.split(25):
            metric.update(scores[part], labels[part])
        values.append({name: value.item() for name, value in metric.compute().items()})
    return values


def test_ranks_are_synchronised(tmp_path):
    pool = RankPool(2, tmp_path, [__name__])
    try:
        values = pool.run(_of_all_ranks, [0, 1])
    finally:
        pool.close()
    scores, labels = rows()
    expected = []
    for mode in ("exact", "bounded"):
        whole = PairMetric(mode=mode, max_fpr=0.3)
        whole.update(scores, labels)
        expected.append({name: value.item() for name, value in whole.compute().items()})
    assert values == [expected, expected]
