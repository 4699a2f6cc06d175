"""The limits on speed, accuracy and size, as data, and the comparison of rows with them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from benchmarks.contenders import NATIVE
from benchmarks.rows import Row
from benchmarks.runner_overhead import BARE, RUNNER
from benchmarks.suites import SURROGATES
from benchmarks.torch_overhead import PAIR_LOSS

# Loss and gradient of the squared hinge, float32: time relative to BCE with as many threads.
SPEED = {
    1: {10**3: 0.5, 10**4: 0.8, 10**5: 1.2, 10**6: 0.9, 10**7: 0.7},
    2: {10**3: 0.5, 10**4: 0.9, 10**5: 1.4, 10**6: 1.0, 10**7: 0.6},
}
POSITIVES = (0.5, 0.01, 0.001)
# PairLoss forward and backward: time relative to BCE with as many threads.
TORCH = {10**2: 1.3, 10**3: 1.3, 10**5: 1.2, 10**6: 1.2, 10**7: 1.2}
HARD = ("saturated sigmoid", "ties on a grid", "separated classes", "Cauchy")
HARD_RATIO = 2.5
SURROGATE_RATIO = 4.0
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


def verdicts(rows: list[Row]) -> Iterator[Verdict]:
    """Compare the rows with every limit."""
    for threads, limits in SPEED.items():
        for positives in POSITIVES:
            for n, limit in limits.items():
                found = where(
                    rows, suite="loss_and_grad", n=n, positives=positives, threads=threads
                )
                bar = f"n {n:g}, {positives:.1%} positives, {threads} thread(s): over BCE"
                yield ratio_to_bce(bar, limit, found)

    for threads in (1, 2):
        for shape in HARD:
            found = where(rows, suite="hard_inputs", n=10**6, input=shape, threads=threads)
            bar = f"{shape}, n 1e6, {threads} thread(s): over BCE"
            yield ratio_to_bce(bar, HARD_RATIO, found)

    for threads, positives, (n, limit) in product((1, 2), (0.5, 0.01), TORCH.items()):
        place = {"suite": "torch", "backend": PAIR_LOSS.backend}
        found = where(rows, **place, n=n, positives=positives, threads=threads)
        bar = f"PairLoss, n {n:g}, {positives:.1%} positives, {threads} thread(s): over BCE"
        yield ratio_to_bce(bar, limit, found)

    for shape in sorted({r.input for r in rows if r.suite == "hard_inputs"}):
        small, large = (
            where(rows, suite="hard_inputs", n=n, input=shape, threads=1) for n in (10**5, 10**6)
        )
        yield times(f"{shape}: n 1e6 over n 1e5", GROWTH_OF_TENFOLD, large, small)

    for name in sorted({contender.surrogate for contender in SURROGATES} - {NATIVE.surrogate}):
        for n in SPEED[1]:
            place = {"suite": "surrogates", "n": n, "positives": 0.5}
            found = where(rows, **place, surrogate=name)
            bar = f"{name}, n {n:g}: over squared hinge"
            yield times(bar, SURROGATE_RATIO, found, where(rows, **place))

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
