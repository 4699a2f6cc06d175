"""Time contenders against each other.

A suite names its axes and builds the call to be timed for each combination of their values (a
cell). All contenders of a cell are built first and then run alternately, in a new order in each
round, so that a slow phase of the machine or the state of caches and heap affects all of them.
"""

from __future__ import annotations

import gc
import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

import everypair as ep
from benchmarks.contenders import BCE, Call, Contender
from benchmarks.rows import Row, quantiles, row

SECONDS_OF_A_SAMPLE = 2e-4  # shorter calls are repeated within a sample
SECONDS_OF_A_CONTENDER = 1.5  # time limit in one cell, once there are FEWEST_SAMPLES
SECONDS_OF_A_CALL = 3.0  # calls that are expected to take longer are skipped
FEWEST_SAMPLES = 3


@dataclass(frozen=True)
class Settings:
    """The settings of the command line; the last three concern the kernel suite only.

    An empty tuple stands for all sizes, questions or instruction sets.
    """

    max_n: int = 10**7
    repeats: int = 51
    sizes: tuple[int, ...] = ()
    only: tuple[str, ...] = ()
    isas: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """A name, the function that builds the calls, the contenders and the axes."""

    name: str
    build: Callable[..., Call | None]
    contenders: tuple[Contender, ...]
    axes: dict[str, tuple]

    def cells(self, max_n: int) -> list[dict[str, object]]:
        points = itertools.product(*self.axes.values())
        cells = [dict(zip(self.axes, point, strict=True)) for point in points]
        return [cell for cell in cells if cell["n"] <= max_n]


def suite(
    name: str, *, contenders: Iterable[Contender], **axes: Iterable
) -> Callable[[Callable[..., Call | None]], Suite]:
    """Decorate a function of a contender and the axes that returns the call to be timed."""
    values = {axis: tuple(points) for axis, points in axes.items()}
    return lambda build: Suite(name, build, tuple(contenders), values)


def powers_of_ten(first: int, last: int) -> tuple[int, ...]:
    return tuple(10**k for k in range(first, last + 1))


@contextmanager
def num_threads(threads: int) -> Iterator[None]:
    """Give torch and everypair the same number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    ep.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        ep.set_num_threads(None)


@dataclass
class Timed:
    """A call, its number of repetitions in a sample, and its samples in seconds per call."""

    call: Call
    seconds_of_a_sample: float = SECONDS_OF_A_SAMPLE
    inner: int = 1
    samples: list[float] = field(default_factory=list)
    spent: float = 0.0

    def warm_up(self) -> None:
        """Choose the number of repetitions; the first calls are slower than those that follow."""
        for _ in range(4):
            seconds = self.once()
            if seconds > self.seconds_of_a_sample and self.spent > SECONDS_OF_A_CONTENDER / 10:
                break
            self.inner = min(1000, math.ceil(self.seconds_of_a_sample / seconds))
        self.spent = 0.0

    def once(self) -> float:
        call = self.call
        start = time.perf_counter()
        for _ in range(self.inner):
            call()
        seconds = time.perf_counter() - start
        self.spent += seconds
        return seconds / self.inner


def interleave(
    timed: list[Timed],
    repeats: int,
    seconds: float = SECONDS_OF_A_CONTENDER,
    fewest: int = FEWEST_SAMPLES,
) -> None:
    """Run the contenders alternately, in a random order in each round.

    Each takes `repeats` samples, but only `fewest` once it has run for `seconds`.
    """
    order = random.Random(0)
    for each in timed:
        each.warm_up()
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeats):
            for each in order.sample(timed, len(timed)):
                if len(each.samples) < fewest or each.spent < seconds:
                    each.samples.append(each.once())
    finally:
        gc.enable()


def run(chosen: Suite, settings: Settings, advance: Callable[[str], None]) -> Iterator[Row]:
    """Time a suite; ``advance`` is called with the name of each cell before it starts."""
    last: dict[tuple, tuple[int, float]] = {}  # the last n and median of each contender
    for cell in chosen.cells(settings.max_n):
        advance(", ".join(f"{axis} {value}" for axis, value in cell.items()))
        n = int(cell["n"])
        others = tuple(value for axis, value in cell.items() if axis != "n")

        def affordable(contender: Contender, n: int = n, others: tuple = others) -> bool:
            smaller, seconds = last.get((contender, others), (n, 0.0))
            return seconds * n / smaller < SECONDS_OF_A_CALL

        with num_threads(int(cell.get("threads", 1))):
            calls = {
                contender: chosen.build(contender=contender, **cell)
                for contender in chosen.contenders
                if affordable(contender)
            }
            timed = {contender: Timed(call) for contender, call in calls.items() if call}
            interleave(list(timed.values()), settings.repeats)

        measured = {contender: quantiles(each.samples) for contender, each in timed.items()}
        reference = measured.get(BCE)
        for contender, found in measured.items():
            last[contender, others] = (n, found["median"])
            ratios = [reference and found[key] / reference[key] for key in ("median", "p20")]
            yield row(
                suite=chosen.name,
                **cell,
                **contender._asdict(),
                quantity="seconds",
                **found,
                repeats=len(timed[contender].samples),
                bce_ratio=ratios[0],
                bce_ratio_p20=ratios[1],
            )
