"""The compiled kernel on the threads of torch: their number never changes a result."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import everypair as ep
from everypair.kernel import choose
from everypair.kernel import threads as thread_settings
from everypair.torch import _sharing as torch_sharing
from everypair.torch import pair_loss

from ..strategies import SURROGATES

needs_kernel = pytest.mark.skipif(choose.native.kernel is None, reason="no compiled kernel here")


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    ep.set_num_threads(None)  # benchmarks that other tests run choose a number for the process
    yield
    torch.set_num_threads(before)
    ep.set_num_threads(None)
    torch_sharing.share_with_kernel()


def sample(n):
    generator = torch.Generator().manual_seed(0)
    labels = torch.rand(n, generator=generator) < 0.2
    return torch.randn(n, generator=generator, requires_grad=True), labels


def test_uses_as_many_threads_as_torch(monkeypatch):
    monkeypatch.delenv("EVERYPAIR_NUM_THREADS", raising=False)
    torch_sharing.share_with_kernel()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        assert ep.get_num_threads() == threads
    ep.set_num_threads(2)
    assert ep.get_num_threads() == 2


def test_the_environment_variable_overrides_torch(monkeypatch):
    monkeypatch.setenv("EVERYPAIR_NUM_THREADS", "5")
    thread_settings.follow(lambda: 3)
    assert ep.get_num_threads() == 5


@needs_kernel
@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda s: s.name)
@pytest.mark.parametrize("n", [40_000, 300_000])
def test_same_bits_for_any_number_and_owner_of_threads(n, surrogate):
    answers = []
    for lend, threads in ((False, 1), (False, 2), (True, 2), (True, 3)):
        if lend:
            torch_sharing.share_with_kernel()
        else:
            choose.native.borrow_team(0)
        ep.set_num_threads(threads)
        scores, labels = sample(n)
        loss = pair_loss(scores, labels, surrogate=surrogate)
        loss.backward()
        answers.append((loss.item(), scores.grad.numpy().tobytes()))
    assert len(set(answers)) == 1


@needs_kernel
def test_after_fork():
    # In a new process, because the process that runs the tests has threads and must not fork.
    program = """
import multiprocessing, torch, everypair as ep, everypair.torch
torch.manual_seed(0)
scores, labels = torch.randn(300_000).numpy(), (torch.rand(300_000) < 0.5).numpy()
def loss(_):
    ep.set_num_threads(2)
    return ep.pair_loss_and_grad(scores, labels)[0]
before = loss(0)
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map_async(loss, range(4)).get(timeout=60) == [before] * 4
assert loss(0) == before
print("done")
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=120
    )
    assert ran.stdout.strip() == "done", ran.stderr


def test_a_library_without_openmp_lends_no_threads(tmp_path):
    assert torch_sharing._openmp_fork(tmp_path / "libtorch_cpu.so") is None
    assert torch_sharing._openmp_fork(np.linalg._umath_linalg.__file__) is None


def test_works_without_the_compiled_kernel(monkeypatch):
    monkeypatch.delenv("EVERYPAIR_NUM_THREADS", raising=False)
    monkeypatch.setattr(choose.native, "kernel", None)
    torch_sharing.share_with_kernel()
    torch.set_num_threads(3)
    assert ep.get_num_threads() == 3
    scores, labels = sample(50)
    with choose.backend("numpy"):
        loss = pair_loss(scores, labels).item()
    expected = ep.naive.pair_loss(scores.detach().double().numpy(), labels.numpy())
    assert loss == pytest.approx(expected, rel=1e-6)
