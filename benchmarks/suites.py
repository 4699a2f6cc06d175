"""The timed suites. Each function prepares a batch and returns the call to be timed."""

from __future__ import annotations

import everypair as ep
from benchmarks.contenders import BCE, NATIVE, NEIGHBOURS, NUMPY, Call, Contender, call_of
from benchmarks.harness import powers_of_ten, suite
from benchmarks.inputs import HARD, batch
from benchmarks.runner_overhead import runner_overhead
from benchmarks.torch_overhead import torch_overhead

POSITIVES = (0.5, 0.01, 0.001)
# Smooth surrogates are left out, because the compiled kernel does not have them yet.
SURROGATES = tuple(
    Contender(NATIVE.backend, name)
    for name in ep.surrogates.names()
    if ep.surrogates.get(name).is_polynomial
)


# n is the last axis, because the time at one size predicts whether the next one is skipped.
@suite(
    "loss_and_grad",
    contenders=(NATIVE, NUMPY, *NEIGHBOURS),
    threads=(1, 2),
    positives=POSITIVES,
    n=powers_of_ten(2, 7),
)
def loss_and_grad(contender: Contender, n: int, positives: float, threads: int) -> Call | None:
    if contender == NUMPY and threads > 1:
        return None  # the NumPy backend uses one thread
    return call_of(contender, batch(n, positives))


@suite("surrogates", contenders=(BCE, *SURROGATES), positives=(0.5, 0.001), n=powers_of_ten(2, 7))
def surrogates(contender: Contender, n: int, positives: float) -> Call | None:
    return call_of(contender, batch(n, positives))


@suite(
    "float64",
    contenders=(BCE, NATIVE, NUMPY),
    threads=(1, 2),
    dtype=("float64",),
    n=powers_of_ten(2, 7),
)
def float64(contender: Contender, n: int, threads: int, dtype: str) -> Call | None:
    if contender == NUMPY and (threads > 1 or n > 10**6):
        return None
    return call_of(contender, batch(n, 0.5, dtype))


@suite(
    "hard_inputs",
    contenders=(BCE, NATIVE),
    threads=(1, 2),
    input=("normal", *HARD),
    n=powers_of_ten(5, 7),
)
def hard_inputs(contender: Contender, n: int, threads: int, input: str) -> Call | None:  # noqa: A002
    return call_of(contender, batch(n, 0.5, "float32", input))


TIMED = (loss_and_grad, surrogates, float64, hard_inputs, torch_overhead, runner_overhead)
