"""The recipe of a launch: whose address went where, and the same with other tensors."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from everypair.torch.triton import cached_launch as quick
from everypair.torch.triton.launch import Job, Trace

TERMS = ((1.0, 0.0, 0.0, 1.0, True),)


@pytest.fixture
def launched(monkeypatch):
    """Let a plan of two launches be chosen for CPU tensors, and return what they were given."""
    seen = []
    kept = torch.empty(3, dtype=torch.float64)

    def run(*arguments, stream):
        seen.append((arguments, stream))

    def plan(job):
        room, counters = torch.empty(10, dtype=torch.float64), torch.zeros(4, dtype=torch.int32)
        first = (job.scores, job.labels, job.slopes, room, room[4:])
        second = (job.value, job.one_class, counters, kept)
        return Trace(room, counters, [(run, first, (5, 1.0)), (run, second, (7,))])

    def prepared(scores, labels, *_, **asked):
        value, slopes = torch.empty(()), torch.empty_like(scores)
        job = Job(scores, labels, None, None, TERMS, True, asked["one_class"],
                  value, None, slopes, None)  # fmt: skip
        return plan, job

    monkeypatch.setattr(quick, "prepared", prepared)
    monkeypatch.setattr(quick, "current_stream", lambda device: 99)
    monkeypatch.setattr(quick, "is_capturing", lambda: False)
    monkeypatch.setattr(quick, "_recipes", {})
    monkeypatch.setattr(quick, "_scratch", {})
    return seen, kept


def ask(scores, labels, one_class):
    return quick.loss_and_grad(scores, labels, TERMS, True, False, one_class)


def test_the_second_time_gets_its_own_addresses(launched):
    seen, kept = launched
    one_class = torch.zeros((), dtype=torch.int64)
    ask(torch.randn(8), torch.ones(8), one_class)
    assert not seen
    scores, labels = torch.randn(8), torch.ones(8)
    value, weight, grad = ask(scores, labels, one_class)
    assert weight is None
    (scratch,) = quick._scratch.values()
    room, counters = scratch.addresses
    first, second = seen
    assert first == (
        (scores.data_ptr(), labels.data_ptr(), grad.data_ptr(), room, room + 32, 5, 1.0), 99,
    )  # fmt: skip
    assert second == (
        (value.data_ptr(), one_class.data_ptr(), counters, kept.data_ptr(), 7), 99,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        (torch.randn(9)[1:], torch.ones(8)),
        (torch.randn(8), torch.ones(9)[1:]),
        (torch.randn(16)[::2], torch.ones(8)),
    ],
    ids=["scores askew", "labels askew", "scores apart"],
)
def test_what_a_kernel_was_not_compiled_for_takes_the_long_way(launched, scores, labels):
    seen, _ = launched
    one_class = torch.zeros((), dtype=torch.int64)
    ask(torch.randn(8), torch.ones(8), one_class)
    assert ask(scores, labels, one_class) is None
    assert not seen


def test_another_size_has_another_recipe(launched):
    seen, _ = launched
    one_class = torch.zeros((), dtype=torch.int64)
    for n in (8, 12, 8, 12):
        ask(torch.randn(n), torch.ones(n), one_class)
    assert len(quick._recipes) == 2
    assert len(seen) == 4


@pytest.mark.usefixtures("launched")
def test_a_launch_that_cannot_be_repeated_is_not(monkeypatch):
    whole = quick.prepared

    def prepared(*arguments, **asked):
        plan, job = whole(*arguments, **asked)
        return lambda job: plan(job)._replace(launched=[None]), job

    monkeypatch.setattr(quick, "prepared", prepared)
    for _ in range(2):
        assert ask(torch.randn(8), torch.ones(8), None) is not None
    assert not quick._recipes


@pytest.mark.usefixtures("launched")
def test_a_captured_launch_takes_the_long_way(monkeypatch):
    monkeypatch.setattr(quick, "is_capturing", lambda: True)
    assert ask(torch.randn(8), torch.ones(8), None) is None
