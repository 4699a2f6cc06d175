"""Time the compiled kernel on every instruction set of this machine, relative to torch's BCE.

Each instruction set has its own process, in which torch and NumPy use no newer instructions than
the kernel. Otherwise the ratio would not be that of a machine with this instruction set. One
thread; BCE has float32 scores. The contenders of a cell run alternately (see `harness`). All small
sizes are in one cell: their times differ so little that a slow phase of the machine could otherwise
make one of them slower than the next larger one.

A call takes the next of several batches each time: if it always took the same small batch, the
branch predictor of the processor would learn the order of its scores.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict

import numpy as np
import torch
from torch import nn

import everypair as ep
from benchmarks import harness, rows
from benchmarks.contenders import Call, bce, with_autograd
from benchmarks.inputs import Batch, batch
from benchmarks.instruction_sets import instruction_sets, variables
from benchmarks.rows import ROOT, KernelRow
from everypair.torch import PairLoss

# From 16 to 1e7 by factors of about two. Most sizes are no powers of ten or of two.
SIZES = (16, 30, 64, 130, 270, 520, 1_000, 1_900, 3_700, 7_400, 15_000, 31_000, 62_000)
SIZES += (120_000, 250_000, 500_000, 1_000_000, 2_100_000, 4_400_000, 10_000_000)
SHARES = (0.5, 0.1, 0.01, 0.001)
SHARES_OF_ALL_QUESTIONS = (0.5, 0.1)  # the squared hinge is measured with all shares

LARGEST_SMALL_SIZE = 10_000
ROWS_OF_ALL_BATCHES = 2**14  # of one size, if that gives at most MOST_BATCHES
MOST_BATCHES = 64
SECONDS_OF_A_SAMPLE = 1e-3
SECONDS_OF_A_QUESTION = 0.2  # time limit for one size, once there are FEWEST_SAMPLES
FEWEST_SAMPLES = 7
SAMPLES_OF_A_REPEAT = 3  # `--repeats` counts those of the other suites, which take longer

Question = Callable[[Batch], Call]


def surrogate(name: str) -> Question:
    return lambda b: lambda: ep.pair_loss_and_grad(b.scores, b.labels, surrogate=name)


def float64(b: Batch) -> Call:
    scores = b.scores.astype(np.float64)
    return lambda: ep.pair_loss_and_grad(scores, b.labels)


def weights(b: Batch) -> Call:
    w = np.random.default_rng(0).uniform(0.5, 2.0, b.scores.size).astype(np.float32)
    return lambda: ep.pair_loss_and_grad(b.scores, b.labels, weights=w)


def hess(b: Batch) -> Call:
    return lambda: ep.pair_derivatives(b.scores, b.labels)


def hvp(b: Batch) -> Call:
    vector = np.random.default_rng(0).standard_normal(b.scores.size, np.float32)
    return lambda: ep.pair_hvp(b.scores, b.labels, vector)


def auc(b: Batch) -> Call:
    return lambda: ep.auc(b.scores, b.labels)


PAIR_LOSS, BCE_MODULE = PairLoss(), nn.BCEWithLogitsLoss()


def pair_loss(b: Batch) -> Call:
    return with_autograd(b, PAIR_LOSS)


def bce_module(b: Batch) -> Call:
    return with_autograd(b, BCE_MODULE)


# Loss and gradient by the surrogates; the other questions are about the squared hinge.
QUESTIONS: dict[str, Question] = {
    "squared_hinge": surrogate("squared_hinge"),
    **{name: surrogate(name) for name in ep.surrogates.names() if name != "squared_hinge"},
    **{question.__name__: question for question in (float64, weights, hess, hvp, auc)},
    "PairLoss": pair_loss,
}


def peer_of(question: str) -> Question:
    return bce_module if question == "PairLoss" else bce


def asked(positives: float, only: Iterable[str] = ()) -> list[str]:
    """Return the questions that are measured with this share of positives."""
    everything = positives in SHARES_OF_ALL_QUESTIONS
    questions = QUESTIONS if everything else ["squared_hinge"]
    return [name for name in questions if not only or name in only]


def cells(
    sizes: Iterable[int], only: Iterable[str] = ()
) -> list[tuple[tuple[int, ...], float, list[str]]]:
    """Return the sizes, the share of positives and the questions that are timed together.

    All small sizes are together. A size is left out if it has less than one positive.
    """
    small = tuple(n for n in sizes if n <= LARGEST_SMALL_SIZE)
    together = [small, *((n,) for n in sizes if n > LARGEST_SMALL_SIZE)]
    found = [
        (tuple(n for n in some if n * share >= 1), share, asked(share, only))
        for some, share in itertools.product(together, SHARES)
    ]
    return [cell for cell in found if cell[0] and cell[2]]


def in_turn(calls: list[Call]) -> Call:
    if len(calls) == 1:
        return calls[0]
    endless = itertools.cycle(calls)
    return lambda: next(endless)()


def timed_calls(n: int, positives: float, questions: list[str]) -> dict[Question, harness.Timed]:
    """Return the calls of these questions and of their peers, on batches of n rows."""
    number = min(max(ROWS_OF_ALL_BATCHES // n, 1), MOST_BATCHES)
    batches = [batch(n, positives, seed=seed) for seed in range(number)]
    asked_and_peers = dict.fromkeys(
        each for name in questions for each in (QUESTIONS[name], peer_of(name))
    )
    return {
        each: harness.Timed(in_turn([each(b) for b in batches]), SECONDS_OF_A_SAMPLE)
        for each in asked_and_peers
    }


def measure(
    sizes: Iterable[int], positives: float, questions: list[str], samples: int
) -> list[KernelRow]:
    """Time these questions and their peers, alternating between all of them and all sizes."""
    timed = {n: timed_calls(n, positives, questions) for n in sizes}
    with harness.num_threads(1):
        harness.interleave(
            [each for calls in timed.values() for each in calls.values()],
            samples,
            SECONDS_OF_A_QUESTION,
            FEWEST_SAMPLES,
        )
    measured = []
    for n, calls in timed.items():
        quantiles = {
            question: np.quantile(each.samples, [0.25, 0.5]).tolist()
            for question, each in calls.items()
        }
        for name in questions:
            ours, peer = quantiles[QUESTIONS[name]], quantiles[peer_of(name)]
            measured.append(
                KernelRow(
                    question=name,
                    n=n,
                    positives=positives,
                    torch_capability=torch.backends.cpu.get_cpu_capability(),
                    seconds=ours[0],
                    bce_seconds=peer[0],
                    ratio=ours[0] / peer[0],
                    ratio_of_medians=ours[1] / peer[1],
                    samples=len(calls[QUESTIONS[name]].samples),
                    **rows.environment(),
                )
            )
    return measured


def run(settings: harness.Settings, advance: Callable[[str], None]) -> Iterator[KernelRow]:
    """Run a process for each instruction set, and yield its rows as they come."""
    todo = {
        "sizes": [n for n in settings.sizes or SIZES if n <= settings.max_n],
        "only": settings.only,
        "samples": SAMPLES_OF_A_REPEAT * settings.repeats,
    }
    number = len(cells(todo["sizes"], settings.only))
    for isa in settings.isas or instruction_sets():
        command = [sys.executable, "-m", "benchmarks.kernel", json.dumps({"isa": isa, **todo})]
        environment = {**os.environ, **variables(isa)}
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        ) as child:
            try:
                for done, line in enumerate(child.stdout, 1):
                    measured = [KernelRow(**record) for record in json.loads(line)]
                    n, share = measured[-1].n, measured[-1].positives
                    advance(f"{isa}, n to {n}, positives {share} done ({done} of {number})")
                    yield from measured
            except BaseException:
                child.terminate()
                raise
        if child.returncode:
            raise RuntimeError(
                f"the process that measures {isa} ended with exit code {child.returncode}"
            )


def main() -> None:
    """Measure one instruction set; print the rows of a cell as one line of JSON."""
    from everypair import _native

    todo = json.loads(sys.argv[1])
    _native.use_isa(todo["isa"])
    for cell in cells(todo["sizes"], todo["only"]):
        measured = measure(*cell, todo["samples"])
        print(json.dumps([asdict(row) for row in measured]), flush=True)


if __name__ == "__main__":
    main()
