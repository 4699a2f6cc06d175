"""Launches that are compiled once and replayed with other tensors give what a first launch gives.

Without a GPU, kernels are Python functions that read and write CPU memory at the given addresses.
"""

from __future__ import annotations

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

pytest.importorskip("everypair.torch.triton", exc_type=ImportError)
from everypair import surrogates
from everypair.torch import _dispatch
from everypair.torch.triton import cached_launch, plans
from everypair.torch.triton.common import launch

TERMS = surrogates.SQUARED_HINGE.at_knots(1.0)
C_TYPES = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}


def memory(address, n, c_type=ctypes.c_double):
    return np.ctypeslib.as_array((c_type * n).from_address(address))


class Kernel:
    """A function of addresses and numbers that is compiled and launched as Triton's kernels are."""

    def __init__(self, function, *arg_names):
        self.function, self.arg_names = function, [*arg_names]
        self.compiled = []
        self.launched = []

    def warmup(self, *arguments, grid, **named):
        self.compiled.append((arguments, named, grid))
        return {grid: self.run}

    def run(self, *arguments, stream):
        self.launched.append((dict(zip(self.arg_names, arguments, strict=True)), stream))
        self.function(*arguments)

    def __getitem__(self, grid):
        def run_with_tensors(*arguments, num_warps, **constants):
            addresses = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in arguments]
            self.function(*addresses, *constants.values())

        return run_with_tensors


def _first(scores, labels, workspace, terms, counters, n, DTYPE):
    assert memory(counters, 1, ctypes.c_int32) == 0
    product = memory(scores, n, DTYPE) * memory(labels, n, DTYPE)
    memory(workspace, n)[:] = product + memory(terms, 1)


def _second(workspace, weights, grad, value, pair_weight, one_class, n, DTYPE, COUNTED):
    memory(grad, n, DTYPE)[:] = 2 * memory(workspace, n)
    memory(value, 1, DTYPE)[:] = memory(workspace, n).sum()
    memory(pair_weight, 1)[:] = n
    if COUNTED:
        memory(one_class, 1, ctypes.c_int64)[:] += 1


@pytest.fixture
def stream(monkeypatch):
    """The current stream, which a test may set."""
    current = [7]
    for module in (launch, cached_launch):
        monkeypatch.setattr(module, "current_stream", lambda device: current[0])
        monkeypatch.setattr(module, "is_capturing", lambda: False)
    monkeypatch.setattr(launch, "INTERPRETED", False)
    monkeypatch.setattr(launch, "_compiled", {})
    monkeypatch.setattr(launch, "_arguments", {})
    launch._counters.cache_clear()
    launch._on_device.cache_clear()
    return current


@pytest.fixture
def kernels(stream, monkeypatch):
    """Two kernels of a plan: value = sum(s y + shift), grad = 2 (s y + shift)."""
    pair = (
        Kernel(_first, "scores", "labels", "workspace", "terms", "counters", "n", "DTYPE"),
        Kernel(_second, "workspace", "weights", "grad", "value", "pair_weight", "one_class", "n",
               "DTYPE", "COUNTED"),
    )  # fmt: skip

    def plan(job):
        terms = launch.on_device(launch.coefficients(job.terms), job.scores.device)
        tensors = launch.buffers(job, job.n, 1, terms=terms)
        constants = {"DTYPE": C_TYPES[job.scores.dtype], "COUNTED": job.one_class is not None}
        launched = [
            launch.launch(kernel, (1, 1), tensors, {"n": job.n}, constants, num_warps=4)
            for kernel in pair
        ]
        return launch.Trace(tensors, launched)

    monkeypatch.setattr(plans, "by_pairs", plan)
    monkeypatch.setattr(plans, "buckets_fit", lambda *_: True)
    monkeypatch.setattr(cached_launch, "_recipes", {})
    monkeypatch.setattr(cached_launch, "_scratch", {})
    return pair


def batch(n, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(n, generator=generator, dtype=dtype) for _ in range(2))


def computed(scores, labels, one_class=None):
    return cached_launch.loss_and_grad(scores, labels, TERMS, True, False, one_class)


def assert_computed(scores, labels, one_class=None):
    value, pair_weight, grad = computed(scores, labels, one_class)
    assert pair_weight is None
    torch.testing.assert_close(value, (scores * labels + 1.0).sum())
    torch.testing.assert_close(grad, 2 * (scores * labels + 1.0))


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_replay_uses_the_tensors_of_its_call(kernels, dtype, counted):
    one_class = torch.zeros((), dtype=torch.int64) if counted else None
    for seed in range(4):
        assert_computed(*batch(8, seed, dtype), one_class)
    assert [len(kernel.compiled) for kernel in kernels] == [1, 1]
    assert [len(kernel.launched) for kernel in kernels] == [4, 4]
    assert not counted or one_class == 4


def test_the_same_tensor_twice_may_become_two(kernels):
    scores, labels = batch(8)
    assert_computed(scores, scores)
    assert_computed(scores, labels)
    assert len(kernels[0].compiled) == 1


@pytest.mark.usefixtures("kernels")
def test_sizes_that_alternate(stream):
    for n in (8, 200, 8, 12, 200, 1):
        for stream[0] in (7, 8):
            assert_computed(*batch(n, seed=n))


def test_streams_and_threads_do_not_share_memory(kernels, stream):
    def run(number):
        stream[0] = number
        for seed in range(2):
            assert_computed(*batch(8, seed))
        return kernels[0].launched[-1][0]["workspace"], kernels[0].launched[-1][0]["counters"]

    with ThreadPoolExecutor(1) as thread:
        used = [run(7), run(8), thread.submit(run, 7).result()]
    assert [stream for _, stream in kernels[0].launched] == [7, 7, 8, 8, 7, 7]
    for addresses in zip(*used, strict=True):
        assert len(set(addresses)) == 3


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        (torch.randn(9)[1:], torch.ones(8)),
        (torch.randn(8), torch.ones(9)[1:]),
        (torch.randn(16)[::2], torch.ones(8)),
    ],
    ids=["unaligned scores", "unaligned labels", "strided scores"],
)
def test_a_tensor_the_kernel_was_not_compiled_for_is_left_to_the_plans(kernels, scores, labels):
    assert_computed(*batch(8))
    assert computed(scores, labels) is None
    assert len(kernels[0].launched) == 1


def test_an_unaligned_tensor_is_launched_without_the_cache(kernels):
    scores, labels = batch(9)
    for _ in range(2):
        assert_computed(scores[1:], labels[1:])
    assert not kernels[0].compiled
    assert not cached_launch._recipes


@pytest.mark.usefixtures("kernels")
def test_nothing_is_replayed_into_a_graph(monkeypatch):
    assert_computed(*batch(8))
    monkeypatch.setattr(cached_launch, "is_capturing", lambda: True)
    assert computed(*batch(8)) is None


@pytest.mark.usefixtures("stream")
def test_a_variant_is_compiled_for_everything_that_triton_specialises():
    kernel = Kernel(lambda *_: None, "scores", "n", "shift", "level", "BLOCK")

    def variants(n=32, shift=1.0, level=0, block=64, grid=(2, 1), dtype=torch.float32, warps=4):
        tensors = {"scores": torch.empty(4, dtype=dtype), "unused": torch.empty(4)}
        scalars = {"n": n, "shift": shift, "level": level}
        launch.launch(kernel, grid, tensors, scalars, {"BLOCK": block}, num_warps=warps)
        return len(kernel.compiled)

    assert variants() == 1
    assert variants(n=48, shift=0.5) == 1  # a multiple of 16 as before; no float is compiled in
    changes = [
        {"n": 33}, {"n": 1}, {"level": 1}, {"level": 5}, {"block": 128}, {"grid": (3, 1)},
        {"dtype": torch.float64}, {"warps": 8}, {"n": 2**32},
    ]  # fmt: skip
    for number, change in enumerate(changes, start=2):
        assert variants(**change) == variants(**change) == number, change
    named, stream = kernel.launched[-1]
    assert (named["n"], named["shift"], named["level"], named["BLOCK"]) == (2**32, 1.0, 0, 64)
    assert stream == 7


def test_a_kernel_with_its_arguments_out_of_order_is_refused():
    kernel = Kernel(None, "n", "scores")
    with pytest.raises(TypeError, match="pointers, then scalars, then constants"):
        launch.launch(kernel, (1, 1), {"scores": torch.empty(4)}, {"n": 4}, {})


@pytest.mark.parametrize(("version", "backend"), [("3.3.1", "operations"), ("3.10.0", "triton")])
def test_a_triton_that_is_too_old_leaves_gpus_to_torch_operations(monkeypatch, version, backend):
    for name in [name for name in sys.modules if name.startswith("everypair.torch.triton")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("triton.__version__", version)
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    caches = _dispatch._triton, _dispatch._backend_on
    try:
        for cache in caches:
            cache.cache_clear()
        assert _dispatch._backend_on("cuda") == backend
    finally:
        for cache in caches:
            cache.cache_clear()
