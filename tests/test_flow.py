"""The way of a batch is short: few calls through few files, and each value is checked once."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import everypair as ep
from everypair.inputs import binary
from everypair.kernel import choose, native

pytestmark = pytest.mark.skipif(native.kernel is None, reason="the compiled kernel is not built")

SOURCE = Path(ep.__file__).parent
RNG = np.random.default_rng(0)
SCORES, LABELS = RNG.normal(size=1000), RNG.random(1000) < 0.3
GRADES = RNG.integers(0, 50, 1000)


def python_calls(function):
    """Return the file and the name of each function of the package that runs, caches filled."""
    calls = []

    def record(frame, event, _):
        path = Path(frame.f_code.co_filename)
        # Comprehensions are calls before Python 3.12 only.
        if event == "call" and SOURCE in path.parents and frame.f_code.co_name[0] != "<":
            calls.append((path.relative_to(SOURCE).as_posix(), frame.f_code.co_name))

    for _ in range(3):
        function()
    sys.setprofile(record)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def assert_few(function, n_calls, n_files):
    with choose.backend("native"):
        calls = python_calls(function)
    assert len(calls) <= n_calls, calls
    assert len({file for file, _ in calls}) <= n_files, calls


def test_a_batch_takes_few_calls():
    assert_few(lambda: ep.pair_loss_and_grad(SCORES, LABELS), 12, 6)
    assert_few(lambda: ep.auc(SCORES, LABELS), 12, 6)
    assert_few(lambda: ep.pair_loss_and_grad(SCORES, GRADES, pairs="ordered"), 18, 8)


@pytest.mark.parametrize(("pairs", "n_calls", "n_files"), [("binary", 15, 8), ("ordered", 30, 10)])
def test_a_training_step_takes_few_calls(pairs, n_calls, n_files):
    torch = pytest.importorskip("torch")
    module = pytest.importorskip("everypair.torch").PairLoss(pairs=pairs)
    scores = torch.tensor(SCORES, dtype=torch.float32, requires_grad=True)
    labels = torch.tensor(LABELS if pairs == "binary" else GRADES)
    assert_few(lambda: module(scores, labels), n_calls, n_files)


def test_a_partial_auc_validates_labels_once(monkeypatch):
    checked = []

    def positive_rows(labels):
        checked.append(labels)
        return labels == 1

    monkeypatch.setattr(binary, "positive_rows", positive_rows)
    ep.pair_loss_and_grad(SCORES, LABELS.astype(int), max_fpr=0.1)
    assert len(checked) == 1
