"""The timed suites. Each function prepares a batch and returns the call to be timed."""

from __future__ import annotations

from benchmarks.contenders import BCE, IN_TORCH, NATIVE, NUMPY, PAIR_LOSS, Call, Contender, call_of
from benchmarks.harness import powers_of_ten, suite
from benchmarks.inputs import HARD, batch
from benchmarks.runner_overhead import runner_overhead

POSITIVES = (0.5, 0.01, 0.001)


# n is the last axis, because the time at one size predicts whether the next one is skipped.
@suite(
    "loss_and_grad",
    contenders=(NATIVE, NUMPY, *IN_TORCH),
    threads=(1, 2),
    positives=POSITIVES,
    n=powers_of_ten(2, 7),
)
def loss_and_grad(contender: Contender, n: int, positives: float, threads: int) -> Call | None:
    if threads > 1 and contender not in (NATIVE, PAIR_LOSS, BCE):
        return None  # the others are compared on one thread only
    return call_of(contender, batch(n, positives))


@suite(
    "hard_inputs",
    contenders=(BCE, NATIVE),
    threads=(1, 2),
    input=("normal", *HARD),
    n=(1_000, 3_000, 10_000, 30_000, *powers_of_ten(5, 7)),
)
def hard_inputs(contender: Contender, n: int, threads: int, input: str) -> Call | None:  # noqa: A002
    return call_of(contender, batch(n, 0.5, "float32", input))


TIMED = (loss_and_grad, hard_inputs, runner_overhead)
