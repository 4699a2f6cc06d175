"""The monitor computes metrics of whole data sets, and reports a training that diverges."""

from __future__ import annotations

import csv
import math
import re
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import everypair as ep
from everypair.torch._module import PairLoss
from everypair.torch.training.monitor import DivergenceError, DivergenceWarning, EpochMonitor
from everypair.torch.training.sampler import StratifiedBatchSampler


def scored(n=500, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, generator=generator) < 0.1).long()
    return torch.randn(n, generator=generator) + labels, labels


def feed(monitor, split, scores, labels, batch_size=64, **more):
    for rows in torch.arange(len(labels)).split(batch_size):
        monitor.update(
            split, scores[rows], labels[rows], **{name: part[rows] for name, part in more.items()}
        )


@pytest.mark.parametrize("batch_size", [1, 64, 500])
def test_metrics_do_not_depend_on_the_batch_size(batch_size):
    scores, labels = scored()
    names = ep.surrogates.names()
    monitor = EpochMonitor(names, margin=0.7)
    feed(monitor, "validation", scores, labels, batch_size)
    values = monitor.evaluate()
    assert not monitor.history
    feed(monitor, "subtrain", scores, labels, batch_size)
    feed(monitor, "validation", -scores, labels, batch_size)
    record = monitor.end_epoch()
    assert {f"validation/{name}": record[f"subtrain/{name}"] for name in (*names, "auc")} == values
    for split, s in (("subtrain", scores.double()), ("validation", -scores.double())):
        for name in names:
            expected = ep.naive.pair_loss(s.numpy(), labels.numpy(), surrogate=name, margin=0.7)
            assert record[f"{split}/{name}"] == pytest.approx(expected, rel=1e-12)
            assert record[f"{split}/{name}"] >= 0.0
        assert record[f"{split}/auc"] == ep.auc(s.numpy(), labels.numpy())
    assert record["epoch"] == 0
    assert monitor.history == [record]
    assert monitor.advice == ""


def test_weights_and_groups_are_used():
    scores, labels = scored()
    weights = torch.rand(500, generator=torch.Generator().manual_seed(1))
    options = {"weights": weights, "groups": torch.arange(500) % 3}
    monitor = EpochMonitor()
    feed(monitor, "subtrain", scores, labels, **options)
    record = monitor.end_epoch()
    expected = ep.pair_loss(scores.double(), labels, **options)
    assert record["subtrain/squared_hinge"] == pytest.approx(expected, rel=1e-12)
    assert record["subtrain/auc"] == pytest.approx(ep.auc(scores.double(), labels, **options))
    monitor.update("subtrain", scores, labels, weights)
    with pytest.raises(ValueError, match="weights must come with every batch of an epoch"):
        monitor.update("subtrain", scores, labels)


def test_several_tasks_with_missing_labels():
    scores, labels = scored()
    table = torch.stack([labels.float(), 1.0 - labels, torch.zeros(500)], dim=1)
    table[:100, 1] = math.nan
    monitor = EpochMonitor()
    feed(monitor, "subtrain", torch.stack([scores] * 3, dim=1), table)
    double, y = scores.double().numpy(), labels.numpy()
    expected = (ep.auc(double, y) + ep.auc(double[100:], 1 - y[100:])) / 2
    record = monitor.end_epoch()
    assert record["subtrain/auc"] == pytest.approx(expected, rel=1e-12)
    monitor.update("subtrain", torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="same number of tasks in every batch"):
        monitor.update("subtrain", torch.zeros(2), torch.zeros(2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_scores_of_all_types_are_copied_exactly(dtype):
    scores, labels = scored()
    monitor = EpochMonitor()
    kept = scores.to(dtype).requires_grad_()
    monitor.update("subtrain", kept, labels)
    with torch.no_grad():
        kept.zero_()  # a compiled model writes its next batch here
    expected = ep.pair_loss(scores.to(dtype).double().numpy(), labels.numpy())
    assert monitor.end_epoch()["subtrain/squared_hinge"] == pytest.approx(expected, rel=1e-12)


def one_epoch(monitor, scores, labels=None, split="subtrain"):
    labels = torch.arange(len(scores)) % 2 if labels is None else labels
    monitor.update(split, torch.as_tensor(scores), labels)
    return monitor.end_epoch()


def test_the_first_batch_with_scores_that_are_not_finite_is_reported():
    monitor = EpochMonitor()
    monitor.update("subtrain", torch.zeros(4), torch.arange(4) % 2)
    monitor.update("subtrain", torch.tensor([0.0, math.nan, math.inf]), torch.tensor([0, 1, 0]))
    with pytest.warns(DivergenceWarning, match="epoch 0, subtrain: 2 of 7 scores.*in batch 1"):
        record = monitor.end_epoch()
    assert math.isnan(record["subtrain/auc"])
    assert "earlier checkpoint" in monitor.advice
    assert "learning rate by 10" in monitor.advice


@pytest.mark.parametrize(
    ("scores", "dtype", "message"),
    [
        ([-3e38, 3e38], torch.bfloat16, r"squared_hinge is .*e\+77, beyond 3.4e\+38"),
        ([-1e200, 1e200], torch.float64, "squared_hinge is inf"),
        ([-1e18, 1e18], torch.float32, None),
    ],
)
def test_a_loss_too_large_for_the_type_of_the_training_is_an_overflow(scores, dtype, message):
    monitor = EpochMonitor(on_divergence="ignore")
    one_epoch(monitor, torch.tensor(scores, dtype=dtype), torch.tensor([1, 0]))
    assert re.search(message, monitor.advice) if message else not monitor.findings


def test_one_class_and_a_constant_score_are_reported():
    monitor = EpochMonitor()
    with pytest.warns(DivergenceWarning, match="0 positives and 4 negatives.*stratified"):
        record = one_epoch(monitor, torch.zeros(4), torch.zeros(4), "validation")
    assert math.isnan(record["validation/squared_hinge"])
    monitor = EpochMonitor()
    one_epoch(monitor, torch.zeros(4))  # allowed in the first epoch: a linear model may start there
    assert monitor.advice == ""
    with pytest.warns(DivergenceWarning, match="epoch 1.*same score.*died"):
        one_epoch(monitor, torch.zeros(4))


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1.1, 0.5, 0.2, 0.1], []),
        ([0.5, 0.6, 0.7, 0.8], [(3, "rising")]),
        ([0.5, 0.6, 0.7, 0.69, 0.8], []),
        ([1.0, 0.1, 0.2, 0.3, 0.4], []),  # rises, but is below the first loss
        ([1.0, 0.1, 20.0, 15.0, 0.2], [(2, "exploded")]),
        ([1e4, 5e3, 1e3], []),  # large from the start, and falls
        ([1.0, 1e39], [(1, "overflow")]),
    ],
)
def test_a_loss_that_diverges_is_reported(losses, expected):
    monitor = EpochMonitor(on_divergence="ignore")
    for loss in losses:  # that of one pair
        one_epoch(monitor, torch.tensor([loss**0.5 - 1.0, 1e-9]), torch.tensor([0, 1]))
    assert monitor.values("subtrain", "squared_hinge") == pytest.approx(losses, rel=1e-6)
    assert [(finding.epoch, finding.kind) for finding in monitor.findings] == expected


def test_each_kind_of_problem_is_reported_once():
    bad = torch.full((4,), math.nan)
    monitor = EpochMonitor()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            one_epoch(monitor, bad)
    assert len(caught) == len(monitor.findings) == 1
    assert caught[0].filename == __file__, "the warning points at the user's line"
    monitor = EpochMonitor(on_divergence="raise")
    with pytest.raises(DivergenceError, match="epoch 0"):
        one_epoch(monitor, bad)
    assert len(monitor.history) == 1
    monitor = EpochMonitor(on_divergence="ignore")
    one_epoch(monitor, bad)
    assert [finding.kind for finding in monitor.findings] == ["not finite"]


def test_only_the_training_split_is_checked_for_a_rising_loss():
    monitor = EpochMonitor(train_split="subtrain")
    scores, labels = scored()
    for step in range(6):  # the validation loss rises
        monitor.update("validation", (1 + step) * scores, labels)
        monitor.update("subtrain", scores + step * labels, labels)
        monitor.end_epoch()
    losses = monitor.values("validation", "squared_hinge")
    assert losses == sorted(losses)
    assert monitor.advice == ""


@pytest.mark.parametrize("rate", [1e-3, 1e-1, 3.0, 10.0])
def test_the_epoch_of_divergence_is_reported(rate):
    X, digit = load_digits(return_X_y=True)
    rows = np.concatenate([np.flatnonzero(digit != 3), np.flatnonzero(digit == 3)[:16]])
    X, labels = torch.tensor(X[rows] / 16).float(), torch.tensor(digit[rows] == 3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    loss, sampler = PairLoss(check=False), StratifiedBatchSampler(labels, 500)
    monitor = EpochMonitor(on_divergence="ignore")
    for _ in range(8):
        with torch.no_grad():
            feed(monitor, "subtrain", model(X), labels, 500)
        monitor.end_epoch()
        for rows in sampler:
            optimizer.zero_grad()
            loss(model(X[rows]), labels[rows]).backward()
            optimizer.step()
    losses = monitor.values("subtrain", "squared_hinge")
    diverged = not losses[-1] <= losses[0]
    assert diverged == (rate >= 1.0)
    assert bool(monitor.advice) == diverged
    if diverged:
        first = next(i for i, value in enumerate(losses) if not value <= 10.0)
        assert monitor.findings[0].epoch == first
        assert f"epoch {first}, subtrain" in monitor.advice
        assert "Divide the learning rate by 10" in monitor.advice


def test_the_history_is_written_as_csv_and_to_a_writer(tmp_path):
    recorded = []
    monitor = EpochMonitor(writer=SimpleNamespace(add_scalar=lambda *args: recorded.append(args)))
    for factor in (1.0, 2.0):
        scores, labels = scored()
        feed(monitor, "subtrain", factor * scores, labels)
        record = monitor.end_epoch()
    assert recorded[-2:] == [(tag, record[tag], 1) for tag in record if tag != "epoch"]
    monitor.to_csv(tmp_path / "history.csv")
    with open(tmp_path / "history.csv", newline="") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert rows == monitor.history


def test_plot(tmp_path):
    monitor = EpochMonitor(("squared_hinge", "linear_hinge"), on_divergence="ignore")
    for factor in (1.0, 2.0, math.nan):
        scores, labels = scored()
        feed(monitor, "subtrain", factor * scores, labels)
        feed(monitor, "validation", scores, labels)
        monitor.end_epoch()
    figure = monitor.plot()
    assert [axes.get_ylabel() for axes in figure.axes] == ["squared hinge", "linear hinge", "AUC"]
    assert [len(axes.lines) for axes in figure.axes] == [3] * 3  # two splits, one finding
    figure.savefig(tmp_path / "curves.png")
    assert EpochMonitor().plot().axes == []


def test_the_interval_is_that_of_delong():
    scores, labels = scored(400)
    monitor = EpochMonitor(confidence=0.9)
    feed(monitor, "subtrain", scores, labels)
    weights = torch.arange(400) % 3
    monitor.update("validation", scores, labels, weights=weights)
    record = monitor.end_epoch()
    for split, w in (("subtrain", None), ("validation", weights)):
        expected = ep.delong(scores, labels, weights=w, confidence=0.9)
        assert record[f"{split}/auc_low"] == pytest.approx(expected.low, rel=1e-12)
        assert record[f"{split}/auc_high"] == pytest.approx(expected.high, rel=1e-12)
    feed(monitor, "validation", scores, labels)
    monitor.end_epoch()
    axes = monitor.plot().axes
    assert [a.get_ylabel() for a in axes] == ["squared hinge", "AUC"]
    assert [len(a.collections) for a in axes] == [0, 2]  # a band for each split


def test_no_interval_for_tasks_groups_and_single_rows():
    scores, labels = scored(100)
    monitor = EpochMonitor(confidence=0.95, on_divergence="ignore")
    monitor.update("tasks", scores.reshape(50, 2), labels.reshape(50, 2))
    monitor.update("groups", scores, labels, groups=torch.arange(100) % 5)
    monitor.update("single", scores[:3], torch.tensor([1, 0, 0]))
    record = monitor.end_epoch()
    for split in ("tasks", "groups", "single"):
        assert math.isnan(record[f"{split}/auc_low"])
        assert math.isnan(record[f"{split}/auc_high"])
        assert 0 <= record[f"{split}/auc"] <= 1


def test_continues_after_a_checkpoint():
    scores, labels = scored()
    monitor, resumed = EpochMonitor(on_divergence="ignore"), EpochMonitor()
    one_epoch(monitor, torch.full((4,), math.nan))
    resumed.load_state_dict(monitor.state_dict())
    assert resumed.history[0].keys() == monitor.history[0].keys()
    assert resumed.findings == monitor.findings
    feed(resumed, "subtrain", scores, labels)
    assert resumed.end_epoch()["epoch"] == 1


def test_only_plot_needs_matplotlib(monkeypatch):
    program = "import sys, everypair.torch; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install matplotlib.*to_csv"):
        EpochMonitor().plot()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"surrogates": ()}, "at least one"),
        ({"surrogates": ("squared_hing",)}, "Did you mean"),
        ({"margin": -1}, "margin"),
        ({"patience": 0}, "patience must be"),
        ({"on_divergence": "print"}, "on_divergence must be"),
        ({"confidence": 95}, "confidence must be a number above 0 and below 1"),
        ({"writer": 3}, "writer must have a method add_scalar"),
    ],
)
def test_bad_arguments_raise(options, says):
    with pytest.raises(ValueError, match=says):
        EpochMonitor(**options)


def test_bad_calls_raise():
    monitor = EpochMonitor("linear_hinge")
    with pytest.raises(ValueError, match="at least one batch"):
        monitor.end_epoch()
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        monitor.update("subtrain", torch.zeros(3), torch.zeros(2))
    one_epoch(monitor, torch.arange(4.0))
    with pytest.raises(ValueError, match=r"among.*subtrain/linear_hinge.*got 'subtrain/auk'"):
        monitor.values("subtrain", "auk")


@pytest.mark.parametrize("pairs", ["ordered", "survival"])
def test_other_targets_have_losses_and_concordance(pairs):
    generator = torch.Generator().manual_seed(0)
    scores, times = torch.randn(2, 60, generator=generator).double()
    times, events = times.exp(), torch.rand(60, generator=generator) < 0.7
    labels = times if pairs == "ordered" else torch.stack([times, events], 1)
    monitor = EpochMonitor(pairs=pairs, confidence=0.95)
    feed(monitor, "validation", scores, labels, 25)
    values = monitor.end_epoch()
    interval = ep.delong(scores, labels, pairs=pairs)
    assert [values[f"validation/auc{end}"] for end in ("", "_low", "_high")] == pytest.approx(
        [interval.auc, interval.low, interval.high]
    )
    expected = ep.pair_loss(scores, labels, pairs=pairs)
    assert values["validation/squared_hinge"] == pytest.approx(expected)
    assert not monitor.findings
