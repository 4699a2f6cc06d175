"""The paper's figure 2: time of loss and gradient against the number of rows.

Half of the rows are positive, and scores are standard normal in float32. Every call is warmed up
and repeated; the median counts. Contenders run in separate processes, because environment variables
set the number of threads and the backend.

>>> taken = measure("logistic", 1000, seconds=0.001)
>>> taken.n, taken.low <= taken.median <= taken.high
(1000, True)
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

import everypair as ep

if TYPE_CHECKING:
    from torch import Tensor

Call = Callable[[], object]
WARM_UP_SECONDS = 0.02
MAX_REPEATS = 101
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "EVERYPAIR_NUM_THREADS")
OVERHEAD = 10
"""The slope is fitted to times above so many times the smallest; others are mostly overhead."""


class NotAvailableError(Exception):
    """A contender cannot run on this machine; the message is the reason."""


@dataclass(frozen=True)
class Contender:
    """A way to compute a loss and its gradient; `build` returns the function that is timed."""

    label: str
    build: Callable[[int, str], Call]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Timing:
    """Seconds for one size: the median, and the 20th and 80th percentile."""

    contender: str
    n: int
    median: float
    low: float
    high: float
    repeats: int


@dataclass(frozen=True)
class Result:
    """The timings, and the reasons why contenders or sizes were left out, by contender."""

    timings: list[Timing]
    left_out: dict[str, str]
    surrogate: str
    threads: int

    def of(self, contender: str) -> list[Timing]:
        """Return a contender's timings, the smallest size first."""
        return [t for t in self.timings if t.contender == contender]

    @property
    def slopes(self) -> dict[str, float | None]:
        """Return the exponent of n by contender; see `slope`."""
        names = dict.fromkeys(t.contender for t in self.timings)
        return {name: slope(self.of(name)) for name in names}


def sizes(max_n: int) -> list[int]:
    """Return the powers of ten from 10 to `max_n`.

    >>> sizes(1000)
    [10, 100, 1000]
    """
    return [10**k for k in range(1, 10) if 10**k <= max_n]


def slope(timings: Sequence[Timing]) -> float | None:
    """Fit the exponent of n where the time is not mostly overhead; None for fewer than two sizes.

    >>> slope([Timing("square", n, 1e-6 * (100 + n**2), 0, 0, 1) for n in (1, 100, 1000, 10000)])
    1.998
    """
    least = OVERHEAD * min((t.median for t in timings), default=0.0)
    fitted = [(t.n, t.median) for t in timings if t.median > least]
    if len(fitted) < 2:
        return None
    n, seconds = np.log10(fitted).T
    return round(float(np.polyfit(n, seconds, deg=1)[0]), 3)


def measure(
    contender: str, n: int, *, surrogate: str = "squared_hinge", seconds: float = 0.3
) -> Timing:
    """Time one contender at one size in this process, for about so many seconds."""
    call = CONTENDERS[contender].build(n, surrogate)
    call()
    warm = perf_counter() + WARM_UP_SECONDS
    while perf_counter() < warm:
        call()
    taken: list[float] = []
    while len(taken) < 3 or (sum(taken) < seconds and len(taken) < MAX_REPEATS):
        start = perf_counter()
        call()
        taken.append(perf_counter() - start)
    low, median, high = np.quantile(taken, (0.2, 0.5, 0.8)).tolist()
    return Timing(contender, n, median, low, high, len(taken))


def run(
    contenders: Sequence[str],
    ns: Sequence[int],
    *,
    surrogate: str = "squared_hinge",
    threads: int = 1,
    seconds: float = 0.3,
    limit: float = 3.0,
    on_step: Callable[[str, int], None] = lambda contender, n: None,
) -> Result:
    """Time contenders at every size, until a call would take longer than `limit` seconds.

    `contenders` are keys of `CONTENDERS`; those that cannot run here are left out, with the reason.
    `ns` are numbers of rows, the smallest first. A call is repeated for `seconds` at each size.
    `on_step` is called with the contender and the size before each measurement.
    """
    result = Result([], {}, surrogate, threads)
    with ExitStack() as stack:
        processes: dict[tuple[tuple[str, str], ...], ProcessPoolExecutor] = {}
        for name in contenders:
            environment = dict.fromkeys(_THREAD_VARIABLES, str(threads))
            environment |= CONTENDERS[name].environment
            key = tuple(environment.items())
            if key not in processes:
                processes[key] = stack.enter_context(_process(environment))
            for n in ns:
                on_step(name, n)
                expected = _expected(result.of(name), n)
                if expected > limit:
                    result.left_out[name] = f"from n = {n:,} on: about {expected:.3g} s per call"
                    break
                try:
                    timing = processes[key].submit(_measured, name, n, surrogate, seconds).result()
                except BrokenProcessPool:
                    del processes[key]
                    timing = f"from n = {n:,} on: its process died, probably out of memory"
                if isinstance(timing, str):
                    result.left_out[name] = timing
                    break
                result.timings.append(timing)
    return result


def _expected(before: Sequence[Timing], n: int) -> float:
    """Extrapolate the seconds of the next size from the last two."""
    if len(before) < 2:
        return 0.0
    last, now = before[-2], before[-1]
    growth = np.log(now.median / last.median) / np.log(now.n / last.n)
    return float(now.median * (n / now.n) ** max(growth, 1.0))


def _process(environment: dict[str, str]) -> ProcessPoolExecutor:
    # Spawned, because a forked process would inherit the backend and threads of this one.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, context, initializer=_enter, initargs=(environment,))


def _enter(environment: dict[str, str]) -> None:
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C


def _measured(contender: str, n: int, surrogate: str, seconds: float) -> Timing | str:
    try:
        return measure(contender, n, surrogate=surrogate, seconds=seconds)
    except (ImportError, NotAvailableError) as error:
        return f"not available: {error}"
    except MemoryError:
        return f"from n = {n:,} on: out of memory"
    except RuntimeError as error:  # torch's OutOfMemoryError is one
        if "out of memory" not in str(error):
            raise
        return f"from n = {n:,} on: out of memory"


def _batch(n: int) -> tuple[Any, Any]:
    scores = np.random.default_rng(n).standard_normal(n, dtype=np.float32)
    return scores, (np.arange(n) % 2).astype(np.float32)


def _on_arrays(compute: Callable[..., object]) -> Callable[[int, str], Call]:
    def build(n: int, surrogate: str) -> Call:
        scores, labels = _batch(n)
        return lambda: compute(scores, labels, surrogate=surrogate)

    return build


def _on_tensors(loss_name: str, device: str = "cpu") -> Callable[[int, str], Call]:
    def build(n: int, surrogate: str) -> Call:
        import torch

        from everypair.torch import AUCMLoss, PairLoss

        if device == "cuda" and not torch.cuda.is_available():
            raise NotAvailableError("torch finds no CUDA device.")
        wait: Call = torch.cuda.synchronize if device == "cuda" else lambda: None
        if loss_name in ("paper", "double sum") and surrogate not in PAPER:
            raise NotAvailableError(f"it is made for {' and '.join(PAPER)} only.")
        losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            "pair": PairLoss(surrogate=surrogate),
            "aucm": AUCMLoss().to(device),
            "logistic": torch.nn.BCEWithLogitsLoss(),
            "paper": PAPER.get(surrogate, algorithm_2),
            "double sum": partial(_double_sum, hinge=surrogate != "square"),
        }
        loss = losses[loss_name]
        scores, labels = (torch.from_numpy(array).to(device) for array in _batch(n))
        scores.requires_grad_()

        def call() -> None:
            scores.grad = None
            loss(scores, labels).backward()  # type: ignore[no-untyped-call]
            wait()

        return call

    return build


def _double_sum(scores: Tensor, labels: Tensor, *, hinge: bool) -> Tensor:
    """Return the square loss or the squared hinge with margin 1 from a matrix of all pairs."""
    shortfall = 1.0 - scores[labels > 0][:, None] + scores[labels <= 0]
    return (shortfall.clamp(min=0.0) if hinge else shortfall).square().mean()


def algorithm_1(scores: Tensor, labels: Tensor, margin: float = 1.0) -> Tensor:
    """Return the mean square loss of the pairs by the paper's algorithm 1, in torch operations."""
    z, x = margin - scores[labels > 0], scores[labels <= 0]
    a, b, c = len(z), (2 * z).sum(), (z**2).sum()
    return (a * x**2 + b * x + c).sum() / (len(z) * len(x))


def algorithm_2(scores: Tensor, labels: Tensor, margin: float = 1.0) -> Tensor:
    """Return the mean squared hinge of the pairs by the paper's algorithm 2, in torch operations.

    Sort, cumulative sums of a, b and c, and a polynomial at each negative.
    """
    order = (scores + margin * (1 - labels)).argsort()
    y, is_pos = scores[order], labels[order]
    z = margin - y
    a, b, c = is_pos.cumsum(0), (2 * z * is_pos).cumsum(0), (z**2 * is_pos).cumsum(0)
    n_pos = labels.sum()
    return ((1 - is_pos) * (a * y**2 + b * y + c)).sum() / (n_pos * (len(y) - n_pos))


PAPER = {"square": algorithm_1, "squared_hinge": algorithm_2}
"""The paper's algorithms by surrogate."""

_LOSS_AND_GRAD = _on_arrays(ep.pair_loss_and_grad)
CONTENDERS: dict[str, Contender] = {
    "naive": Contender("double sum, NumPy", _on_arrays(ep.naive.pair_loss_and_grad)),
    "paper": Contender("the paper's algorithm, torch", _on_tensors("paper")),
    "numpy": Contender("everypair, NumPy only", _LOSS_AND_GRAD, {"EVERYPAIR_BACKEND": "numpy"}),
    "native": Contender("everypair, compiled", _LOSS_AND_GRAD, {"EVERYPAIR_BACKEND": "native"}),
    "torch": Contender("everypair.torch", _on_tensors("pair")),
    "naive_cuda": Contender("double sum, CUDA", _on_tensors("double sum", "cuda")),
    "cuda": Contender("everypair.torch, CUDA", _on_tensors("pair", "cuda")),
    "logistic": Contender("logistic loss, torch", _on_tensors("logistic")),
    "logistic_cuda": Contender("logistic loss, CUDA", _on_tensors("logistic", "cuda")),
    "aucm": Contender("AUCM", _on_tensors("aucm")),
}
"""The contenders by name, in the order of the table."""
