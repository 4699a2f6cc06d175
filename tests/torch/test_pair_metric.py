"""The metric for TorchMetrics: the same on one process, and over all rows of several."""

from __future__ import annotations

import socket
import subprocess
import sys

import numpy as np
import pytest
import torch

import everypair as ep

pytest.importorskip("torchmetrics")
from everypair.torch.metrics import PairMetric

_RANK = """
import sys
import numpy as np
import torch
import torch.distributed as dist
from everypair.torch.metrics import PairMetric

rank, world, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
rows = np.random.default_rng(0).normal(size=(90, 2))
labels = torch.tensor(rows[:, 1] > 0.5)
scores = torch.tensor(rows[:, 0], dtype=torch.float32) + labels
mine = torch.arange(90)[60 * rank : 60 * rank + 60]  # uneven: 60 and 30 rows
for mode in ("exact", "bounded"):
    metric = PairMetric(mode=mode, max_fpr=0.3)
    for part in mine.split(25):
        metric.update(scores[part], labels[part])
    print({name: value.item() for name, value in metric.compute().items()})
dist.destroy_process_group()
"""


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
    found = metric.compute()
    bound = found["auc_bound"].item()
    assert mode == "bounded" or bound == 0.0
    assert found["auc"].item() == pytest.approx(ep.auc(scores, labels), abs=bound + 1e-15)
    expected = ep.pair_loss(scores, labels)
    assert found["squared_hinge"].item() == pytest.approx(expected, rel=1e-5)
    assert found["auc_low"] < found["auc"] < found["auc_high"]
    metric.reset()
    metric.update(scores[:10], labels[:10])
    expected = ep.auc(scores[:10], labels[:10])
    assert metric.compute()["auc"].item() == pytest.approx(expected, abs=1e-2)


def test_ranks_are_synchronised():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, str(rank), "2", str(port)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=300) for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs
    scores, labels = rows()
    expected = []
    for mode in ("exact", "bounded"):
        whole = PairMetric(mode=mode, max_fpr=0.3)
        whole.update(scores, labels)
        expected.append(str({name: value.item() for name, value in whole.compute().items()}))
    assert [output.splitlines() for output, _ in outputs] == [expected, expected]
