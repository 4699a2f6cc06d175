"""The monitor computes metrics of whole data sets, and reports a training that diverges."""

from __future__ import annotations

import csv
import math
import re
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import everypair as ep
from everypair.torch.training.monitor import DivergenceError, DivergenceWarning, EpochMonitor

GENERATOR = torch.Generator().manual_seed(0)
N = 500
LABELS = (torch.rand(N, generator=GENERATOR) < 0.1).long()
SCORES = torch.randn(N, generator=GENERATOR) + LABELS
WEIGHTS, TIMES = torch.rand(2, N, generator=GENERATOR).double()
EVENTS = torch.rand(N, generator=GENERATOR) < 0.7


def feed(monitor, split, scores, labels=LABELS, batch_size=64, **more):
    for rows in torch.arange(len(labels)).split(batch_size):
        monitor.update(
            split, scores[rows], labels[rows], **{name: part[rows] for name, part in more.items()}
        )


def one_epoch(monitor, scores, labels=None, split="subtrain"):
    labels = torch.arange(len(scores)) % 2 if labels is None else labels
    monitor.update(split, torch.as_tensor(scores), labels)
    return monitor.end_epoch()


@pytest.mark.parametrize(
    ("pairs", "labels", "batch_size", "columns"),
    [
        ("binary", LABELS, 1, {}),
        ("binary", LABELS, 64, {"weights": WEIGHTS}),
        ("binary", LABELS, 500, {"weights": WEIGHTS, "groups": torch.arange(N) % 3}),
        ("ordered", TIMES, 64, {}),
        ("survival", torch.stack([TIMES, EVENTS], 1), 64, {}),
    ],
)
def test_the_values_of_an_epoch_are_those_of_all_rows(pairs, labels, batch_size, columns):
    names, confidence = ep.surrogates.names(), None if "groups" in columns else 0.9
    monitor = EpochMonitor(names, margin=0.7, pairs=pairs, confidence=confidence)
    feed(monitor, "validation", SCORES, labels, batch_size, **columns)
    values = monitor.evaluate()
    assert monitor.history == []
    feed(monitor, "subtrain", SCORES, labels, batch_size, **columns)
    feed(monitor, "validation", -SCORES, labels, batch_size, **columns)
    record = monitor.end_epoch()
    of_validation = {tag.replace("validation", "subtrain"): v for tag, v in values.items()}
    assert record.items() >= of_validation.items()
    options = {"pairs": pairs, **columns}
    for split, scores in (("subtrain", SCORES.double()), ("validation", -SCORES.double())):
        expected = {
            name: ep.pair_loss(scores, labels, surrogate=name, margin=0.7, **options)
            for name in names
        }
        expected["auc"] = ep.auc(scores, labels, **options)
        if confidence:
            interval = ep.delong(scores, labels, confidence=confidence, **options)
            expected |= {"auc_low": interval.low, "auc_high": interval.high}
        for name, value in expected.items():
            assert record[f"{split}/{name}"] == pytest.approx(value, rel=1e-12, abs=1e-15)
    assert record["epoch"] == 0
    assert monitor.history == [record]
    assert monitor.advice == ""


def test_several_tasks_with_missing_labels():
    table = torch.stack([LABELS.float(), 1.0 - LABELS, torch.zeros(N)], dim=1)
    table[:100, 1] = math.nan
    monitor = EpochMonitor()
    feed(monitor, "subtrain", torch.stack([SCORES] * 3, dim=1), table)
    aucs = ep.auc(SCORES, LABELS), ep.auc(SCORES[100:], 1 - LABELS[100:])
    assert monitor.end_epoch()["subtrain/auc"] == pytest.approx(sum(aucs) / 2, rel=1e-12)
    monitor.update("subtrain", torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="same number of tasks in every batch"):
        monitor.update("subtrain", torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match="weights must come with every batch of an epoch"):
        monitor.update("subtrain", torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_scores_of_all_types_are_copied_exactly(dtype):
    monitor = EpochMonitor()
    scores = SCORES.to(dtype).requires_grad_()
    expected = ep.pair_loss(scores.detach().double(), LABELS)
    monitor.update("subtrain", scores, LABELS)
    with torch.no_grad():
        scores.zero_()  # a compiled model writes its next batch here
    assert monitor.end_epoch()["subtrain/squared_hinge"] == pytest.approx(expected, rel=1e-12)


def test_no_interval_for_tasks_groups_and_single_rows():
    monitor = EpochMonitor(confidence=0.95)
    monitor.update("tasks", SCORES.reshape(-1, 2), LABELS.reshape(-1, 2))
    monitor.update("groups", SCORES, LABELS, groups=torch.arange(N) % 5)
    monitor.update("single", SCORES[:3], torch.tensor([1, 0, 0]))
    record = monitor.end_epoch()
    for split in ("tasks", "groups", "single"):
        assert math.isnan(record[f"{split}/auc_low"])
        assert math.isnan(record[f"{split}/auc_high"])
        assert 0 <= record[f"{split}/auc"] <= 1


def test_the_first_batch_with_scores_that_are_not_finite_is_reported():
    monitor = EpochMonitor()
    monitor.update("subtrain", torch.zeros(4), torch.arange(4) % 2)
    monitor.update("subtrain", torch.tensor([0.0, math.nan, math.inf]), torch.tensor([0, 1, 0]))
    with pytest.warns(DivergenceWarning, match="epoch 0, subtrain: 2 of 7 scores.*in batch 1"):
        record = monitor.end_epoch()
    assert math.isnan(record["subtrain/auc"])
    assert re.search("earlier checkpoint.*learning rate by 10", monitor.advice)


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
def test_a_training_loss_that_diverges_is_reported(losses, expected):
    monitor = EpochMonitor(on_divergence="ignore", train_split="subtrain")
    for step, loss in enumerate(losses):
        monitor.update("validation", (1 + step) * SCORES, LABELS)  # its loss may rise
        one_epoch(monitor, torch.tensor([loss**0.5 - 1.0, 1e-9]), torch.tensor([0, 1]))  # one pair
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
    resumed = EpochMonitor(on_divergence="ignore")
    resumed.load_state_dict(monitor.state_dict())
    assert one_epoch(resumed, bad)["epoch"] == 1
    assert resumed.findings == monitor.findings
    assert resumed.history[0].keys() == monitor.history[0].keys()


def test_the_history_is_written_as_csv_and_to_a_writer_and_drawn(tmp_path):
    tags = []
    writer = SimpleNamespace(add_scalar=lambda *tag: tags.append(tag))
    names = ("squared_hinge", "linear_hinge")
    monitor = EpochMonitor(names, confidence=0.9, writer=writer, on_divergence="ignore")
    for factor in (1.0, 2.0, math.nan):
        feed(monitor, "subtrain", SCORES)
        feed(monitor, "validation", factor * SCORES)
        record = monitor.end_epoch()
    tags_of_epoch = [tag for tag, _, epoch in tags if epoch == 2]
    assert tags_of_epoch == [tag for tag in record if tag != "epoch"]
    monitor.to_csv(tmp_path / "history.csv")
    with open(tmp_path / "history.csv", newline="") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    np.testing.assert_equal(rows, monitor.history)
    figure = monitor.plot()
    assert [axes.get_ylabel() for axes in figure.axes] == ["squared hinge", "linear hinge", "AUC"]
    assert [len(axes.lines) for axes in figure.axes] == [3] * 3  # two splits, one finding
    assert [len(axes.collections) for axes in figure.axes] == [0, 0, 2]  # a band for each split
    figure.savefig(tmp_path / "curves.png")
    assert EpochMonitor().plot().axes == []


def test_only_plot_needs_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install matplotlib.*to_csv"):
        EpochMonitor().plot()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: EpochMonitor(()), "at least one"),
        (lambda: EpochMonitor(("squared_hing",)), "Did you mean"),
        (lambda: EpochMonitor(margin=-1), "margin"),
        (lambda: EpochMonitor(patience=0), "patience must be"),
        (lambda: EpochMonitor(on_divergence="print"), "on_divergence must be"),
        (lambda: EpochMonitor(confidence=95), "confidence must be a number above 0 and below 1"),
        (lambda: EpochMonitor(writer=3), "writer must have a method add_scalar"),
        (lambda: EpochMonitor().end_epoch(), "at least one batch"),
        (lambda: EpochMonitor().values("train", "auk"), "got 'train/auk'"),
        (lambda: one_epoch(EpochMonitor(), torch.zeros(3), torch.zeros(2)), r"shape \(3,\)"),
    ],
)
def test_bad_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()
