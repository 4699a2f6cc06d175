"""The limits on speed, accuracy and size, as data, and the comparison of rows with them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import NamedTuple

from benchmarks.contenders import NATIVE, PAIR_LOSS
from benchmarks.kernel import SHARES, SIZES
from benchmarks.rows import KernelRow, Row
from benchmarks.runner_overhead import BARE, RUNNER


class KernelBar(NamedTuple):
    """Limits of the time of some questions relative to BCE, for sizes up to each key."""

    questions: tuple[str, ...]
    shares: tuple[float, ...]
    limits: dict[int, float]


# The compiled kernel and PairLoss on one thread, float32 BCE, AVX2 or newer.
KERNEL = (
    KernelBar(("squared_hinge",), SHARES, {10**7: 1.0}),
    KernelBar(
        ("linear_hinge", "huber_hinge", "square", "float64", "weights", "hess", "hvp", "auc"),
        (0.1,),
        {10**4: 1.5, 10**7: 4.0},
    ),
    KernelBar(("PairLoss",), (0.5, 0.1), {10**4: 1.15, 10**7: 1.1}),
)
INSTRUCTION_SETS = ("baseline", "avx2")  # the rows must have these; others may be there too
BASELINE_FACTOR = 1.5  # the limits of the baseline instruction set are higher by this factor
# The baseline kernel is compared with BCE on the same instruction set, and with the faster BCE of
# processors that have AVX2.
BASELINE_PEERS = (("baseline", "baseline"), ("baseline", "avx2"))
NEXT_SIZE_FACTOR = 1.15  # no size may take longer than this times the next larger size

# Loss and gradient of the squared hinge, float32: time relative to BCE, both on two threads.
TWO_THREADS = {10**3: 0.5, 10**4: 0.9, 10**5: 1.4, 10**6: 1.0, 10**7: 0.6}
POSITIVES = (0.5, 0.01, 0.001)
# PairLoss forward and backward: time relative to BCE, both on two threads.
TORCH_TWO_THREADS = {10**2: 1.3, 10**3: 1.3, 10**5: 1.2, 10**6: 1.2, 10**7: 1.2}
HARD = ("saturated sigmoid", "ties on a grid", "separated classes", "Cauchy")
HARD_RATIO = 2.5
# Ten times the rows take about 12 times as long in O(n log n), and more once the data exceed the
# cache.
GROWTH_OF_TENFOLD = 30.0
ACCURACY = {"float32": 1e-6, "float64": 1e-12}
BYTES_PER_ROW = 24.0
WHEEL_BYTES = 1e6
IMPORT_SECONDS = 0.15
RUNNER_RATIO = 1.1
# A fit of PairLinearClassifier, one thread: time relative to LogisticRegression, by rows.
LINEAR = {2_000: 1.5, 200_000: 3.0}
# A LightGBM round, a million rows of 30 columns: time relative to its built-in logloss.
BOOSTING_ROUND_RATIO = 1.2


class Verdict(NamedTuple):
    """A limit and the measured value, which is None if there are no rows for it."""

    bar: str
    limit: float
    measured: float | None
    measured_p20: float | None = None

    @property
    def word(self) -> str:
        if self.measured is None:
            return "no row"
        return "pass" if self.measured <= self.limit else "MISSED"

    @property
    def margin(self) -> float | None:
        """The limit divided by the measured value; above 1 is within the limit."""
        if self.measured is None:
            return None
        return self.limit / self.measured if self.measured else float("inf")


def where(rows: list[Row], **wanted: object) -> list[Row]:
    wanted = {"backend": NATIVE.backend, "surrogate": NATIVE.surrogate, **wanted}
    return [r for r in rows if all(getattr(r, k) == v for k, v in wanted.items())]


def ratio_to_bce(bar: str, limit: float, rows: list[Row]) -> Verdict:
    if not rows:
        return Verdict(bar, limit, None)
    return Verdict(bar, limit, rows[0].bce_ratio, rows[0].bce_ratio_p20)


def worst(bar: str, limit: float, rows: list[Row]) -> Verdict:
    if not rows:
        return Verdict(bar, limit, None)
    highest = max(rows, key=lambda r: r.median)
    place = f" (worst: n {highest.n:g}, {highest.input})" if highest.n else ""
    return Verdict(bar + place, limit, highest.median, highest.p20)


def times(bar: str, limit: float, rows: list[Row], others: list[Row]) -> Verdict:
    """Compare the ratio of two rows with a limit."""
    if not rows or not others:
        return Verdict(bar, limit, None)
    a, b = rows[0], others[0]
    return Verdict(bar, limit, a.median / b.median, a.p20 / b.p20)


def series(rows: list[KernelRow]) -> dict[tuple[str, str, float], list[KernelRow]]:
    """Return the rows of each instruction set, question and share of positives, by size."""
    found: dict[tuple[str, str, float], list[KernelRow]] = {}
    for row in sorted(rows, key=lambda r: r.n):
        found.setdefault((row.isa, row.question, row.positives), []).append(row)
    return found


def longest_step(line: list[KernelRow]) -> tuple[float, int]:
    """Return the largest time of a size relative to that of the next size, and this size."""
    return max((a.seconds / b.seconds, a.n) for a, b in pairwise(line))


def kernel_verdicts(rows: list[KernelRow]) -> Iterator[Verdict]:
    """Compare the rows of the kernel suite with their limits.

    There is one verdict for each range of sizes, with the worst size in parentheses. If a size has
    no row, the range has no measurement.
    """
    found = series(rows)
    isas = dict.fromkeys((*INSTRUCTION_SETS, *(r.isa for r in rows)))
    for isa, peer in (*BASELINE_PEERS, *((isa, isa) for isa in isas if isa != "baseline")):
        factor = BASELINE_FACTOR if isa == "baseline" else 1.0
        for bar in KERNEL:
            for question, share in product(bar.questions, bar.shares):
                bce = {r.n: r.bce_seconds for r in found.get((peer, question, share), [])}
                ours = {r.n: r.seconds for r in found.get((isa, question, share), [])}
                name = f"{isa}, {question}, {100 * share:g} %"
                peer_name = "BCE" if peer == isa else f"BCE on {peer}"
                for (low, high), limit in zip(
                    pairwise((0, *bar.limits)), bar.limits.values(), strict=True
                ):
                    sizes = [n for n in SIZES if low < n <= high and n * share >= 1]
                    bar_name = f"{name}, n to {high:,}: over {peer_name}"
                    if not (bce.keys() & ours.keys()).issuperset(sizes):
                        yield Verdict(bar_name, factor * limit, None)
                        continue
                    ratio, n = max((ours[n] / bce[n], n) for n in sizes)
                    yield Verdict(f"{bar_name} ({n:,})", factor * limit, ratio)
    for (isa, question, share), line in found.items():
        if len(line) > 1:
            step, n = longest_step(line)
            name = f"{isa}, {question}, {100 * share:g} %: over the next size ({n:,})"
            yield Verdict(name, NEXT_SIZE_FACTOR, step)


def verdicts(rows: list[Row]) -> Iterator[Verdict]:
    """Compare the rows of all suites but the kernel's with their limits."""
    for positives, (n, limit) in product(POSITIVES, TWO_THREADS.items()):
        found = where(rows, suite="loss_and_grad", n=n, positives=positives, threads=2)
        bar = f"n {n:g}, {positives:.1%} positives, 2 threads: over BCE"
        yield ratio_to_bce(bar, limit, found)

    for positives, (n, limit) in product(POSITIVES, TORCH_TWO_THREADS.items()):
        place = {"suite": "loss_and_grad", "backend": PAIR_LOSS.backend}
        found = where(rows, **place, n=n, positives=positives, threads=2)
        bar = f"PairLoss, n {n:g}, {positives:.1%} positives, 2 threads: over BCE"
        yield ratio_to_bce(bar, limit, found)

    for threads in (1, 2):
        for shape in HARD:
            found = where(rows, suite="hard_inputs", n=10**6, input=shape, threads=threads)
            bar = f"{shape}, n 1e6, {threads} thread(s): over BCE"
            yield ratio_to_bce(bar, HARD_RATIO, found)

    for shape in sorted({r.input for r in rows if r.suite == "hard_inputs"}):
        small, large = (
            where(rows, suite="hard_inputs", n=n, input=shape, threads=1) for n in (10**5, 10**6)
        )
        yield times(f"{shape}: n 1e6 over n 1e5", GROWTH_OF_TENFOLD, large, small)

    for dtype, limit in ACCURACY.items():
        for quantity in ("loss error", "gradient error"):
            found = where(rows, suite="accuracy", dtype=dtype, quantity=quantity)
            yield worst(f"{quantity}, {dtype}", limit, found)

    for model in ("linear", "mlp"):
        place = {"suite": "runner", "input": model}
        runner, bare = (where(rows, **place, backend=c.backend) for c in (RUNNER, BARE))
        yield times(f"a trial, {model}, batch 100: over a bare loop", RUNNER_RATIO, runner, bare)

    for n, limit in LINEAR.items():
        place = {"suite": "linear", "n": n, "threads": 1}
        ours = where(rows, **place, backend="PairLinearClassifier(auto)")
        theirs = where(rows, **place, backend="LogisticRegression(lbfgs)", surrogate="")
        yield times(f"PairLinearClassifier, n {n:g}: over LogisticRegression", limit, ours, theirs)

    for positives in (0.5, 0.01):
        place = {"suite": "boosting_round", "n": 10**6, "positives": positives}
        ours = where(rows, **place, backend="lightgbm-everypair", surrogate="soft_hinge")
        theirs = where(rows, **place, backend="lightgbm-logloss", surrogate="")
        bar = f"a LightGBM round, n 1e6, {positives:.1%} positives: over logloss"
        yield times(bar, BOOSTING_ROUND_RATIO, ours, theirs)

    memory = [r for r in rows if r.suite == "memory" and r.backend == NATIVE.backend]
    yield worst("working bytes per row", BYTES_PER_ROW, memory)
    yield worst("bytes of the wheel", WHEEL_BYTES, where(rows, suite="wheel"))
    yield worst("seconds to import", IMPORT_SECONDS, where(rows, quantity="import seconds"))
    yield worst("packages imported besides numpy", 0, where(rows, quantity="foreign packages"))
