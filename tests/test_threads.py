"""Threads: results do not depend on their number; concurrent calls and forks are safe."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import everypair as ep
from benchmarks.instruction_sets import instruction_sets
from everypair.kernel import choose
from everypair.kernel import threads as thread_settings
from everypair.surrogates import SQUARED_HINGE

from .strategies import SURROGATES


@pytest.fixture(autouse=True)
def defaults():
    yield
    ep.set_num_threads(None)
    for isa in instruction_sets()[-1:]:
        choose.native.kernel.use_isa(isa)


@pytest.fixture
def environment(monkeypatch):
    """Set variables of the environment, which are read once, for one test."""
    readers = thread_settings._from_environment, choose._default
    for reader in readers:
        reader.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    for reader in readers:
        reader.cache_clear()


def sample(n, dtype=np.float32, seed=0, share=0.2):
    rng = np.random.default_rng(seed)
    return rng.normal(size=n).astype(dtype), rng.random(n) < share


def assert_same_bits(function, isas=(None,)):
    answers = set()
    for isa in isas:
        if isa:
            choose.native.kernel.use_isa(isa)
        for threads in (1, 2, 3):
            ep.set_num_threads(threads)
            answers.add(tuple(np.asarray(result).tobytes() for result in function()))
    assert len(answers) == 1


@pytest.mark.parametrize("share", [0.2, 0.01])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda s: s.name)
def test_same_bits_for_any_number_of_threads(surrogate, dtype, share):
    # Several threads begin at 131,072 rows; from 524,288 rows on the rows are cut into more parts.
    n = 600_000 if (surrogate, dtype, share) == (SQUARED_HINGE, np.float32, 0.2) else 140_000
    scores, labels = sample(n, dtype, share=share)
    vector, weights = np.cos(scores), np.random.default_rng(1).random(n)
    knobs = {"surrogate": surrogate}
    assert_same_bits(
        lambda: [
            *ep.pair_derivatives(scores, labels, **knobs),
            *ep.pair_loss_and_grad(scores, labels, **knobs),
            # Far outliers, for which buckets of rows are split.
            *ep.pair_loss_and_grad(1 / scores, labels, weights=weights, **knobs),
            ep.pair_hvp(scores, labels, vector, **knobs),
            ep.auc(scores, labels),
        ]
    )


@pytest.mark.skipif(not instruction_sets(), reason="the compiled kernel is not built")
@pytest.mark.parametrize(
    ("n", "n_grades", "n_groups"),
    [(140_000, 5, 1), (600_000, 5, 1), *((140_000, 140_000, k) for k in (1, 3, 5_000))],
)
def test_same_bits_for_ordered_pairs(n, n_grades, n_groups):
    rng = np.random.default_rng(0)
    few = n_grades == 5  # the plan for few grades of float32 scores rounds by instruction set
    x, y = rng.normal(size=n).astype(np.float32 if few else float), rng.integers(0, n_grades, n)
    knobs = {"groups": rng.integers(0, n_groups, n) if n_groups > 1 else None, "pairs": "ordered"}
    assert_same_bits(
        lambda: [*ep.pair_loss_and_grad(x, y, **knobs), ep.auc(x, y, **knobs)],
        instruction_sets()[-1:] if few else (instruction_sets()[0], instruction_sets()[-1]),
    )


@pytest.mark.parametrize("n", [100, 20_000])
def test_concurrent_calls(backend, n):
    batches = [sample(n, seed=seed) for seed in range(8)]
    expected = [backend.loss_and_grad(*batch) for batch in batches]

    def work(i):
        return [backend.loss_and_grad(*batches[i]) for _ in range(5)]

    with ThreadPoolExecutor(8) as pool:
        for answers, (value, grad) in zip(pool.map(work, range(8)), expected, strict=True):
            for same_value, same_grad in answers:
                assert same_value == value
                np.testing.assert_array_equal(same_grad, grad)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_after_fork(backend):
    # In a new process, because the process that runs the tests has threads and must not fork.
    program = f"""
import multiprocessing, numpy as np, everypair as ep
from everypair.kernel import choose
rng = np.random.default_rng(0)
scores, labels = rng.normal(size=300_000).astype(np.float32), rng.random(300_000) < 0.5
def loss(_):
    with choose.backend({backend.name!r}):
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


def test_set_and_get():
    scores, labels = sample(100_000)
    expected = ep.pair_loss(scores, labels)
    for threads in (3, np.int64(2), 100_000):  # more than there are cores
        ep.set_num_threads(threads)
        assert ep.get_num_threads() == threads
        assert ep.pair_loss(scores, labels) == expected
    ep.set_num_threads(None)
    assert ep.get_num_threads() >= 1
    for bad in (0, -1, 1.5, "2", True, 2**31):
        with pytest.raises(ValueError, match="threads must be a whole number from 1"):
            ep.set_num_threads(bad)


@pytest.mark.parametrize("bad", ["0", "-2", "two", "1.5"])
def test_the_environment_variable_is_the_default(environment, bad):
    environment.setenv("EVERYPAIR_NUM_THREADS", "5")
    assert ep.get_num_threads() == 5
    ep.set_num_threads(2)
    assert ep.get_num_threads() == 2
    ep.set_num_threads(None)
    environment.setenv("EVERYPAIR_NUM_THREADS", bad)
    thread_settings._from_environment.cache_clear()
    with pytest.raises(ValueError, match=f"EVERYPAIR_NUM_THREADS .* got '{bad}'"):
        ep.get_num_threads()


def test_cores_without_affinity(environment):
    environment.setattr(thread_settings, "_fallback", thread_settings._cores)
    environment.delenv("EVERYPAIR_NUM_THREADS", raising=False)
    assert ep.get_num_threads() == thread_settings._cores()
    environment.delattr("os.sched_getaffinity", raising=False)
    assert thread_settings._cores.__wrapped__() >= 1


def test_backends_by_name(environment):
    with pytest.raises(ValueError, match="backend must be one of auto, numpy, native; got 'cuda'"):
        choose.backend("cuda").__enter__()
    environment.setenv("EVERYPAIR_BACKEND", "gpu")
    with pytest.raises(ValueError, match="EVERYPAIR_BACKEND must be one of"):
        ep.pair_loss([1.0, 2.0], [0, 1])
    environment.setenv("EVERYPAIR_BACKEND", "numpy")
    assert ep.get_backend() == "numpy"
    for isa in instruction_sets():
        choose.native.kernel.use_isa(isa)
        with choose.backend("native"):
            assert ep.get_backend() == f"native ({isa})"


@pytest.mark.skipif(not instruction_sets(), reason="the compiled kernel is not built")
def test_unknown_instruction_set():
    with pytest.raises(ValueError, match="cannot run sse9"):
        choose.native.kernel.use_isa("sse9")


def test_a_missing_kernel(environment):
    environment.setattr(choose.native, "kernel", None)
    environment.setenv("EVERYPAIR_BACKEND", "native")
    with pytest.raises(ImportError, match="EVERYPAIR_BACKEND asks for the compiled kernel"):
        ep.pair_loss([1.0, 2.0], [0, 1])
    environment.setenv("EVERYPAIR_BACKEND", "")
    assert ep.pair_loss([1.0, 2.0], [0, 1]) == 0.0
    assert ep.get_backend() == "numpy"
