"""Relative error of loss and gradient against a sort in long double.

The reference uses centred scores with a 64-bit mantissa (x86), so its own error is far below the
limit of 1e-12 for float64 input.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.contenders import NATIVE, NUMPY, Contender, call_of
from benchmarks.harness import Settings, num_threads, powers_of_ten
from benchmarks.inputs import HARD, OFFSET, Batch, batch
from benchmarks.rows import Row, constant, row

CONTENDERS = (NATIVE, NUMPY, Contender("torch paper", "squared_hinge"))


def sorted_squared_hinge(batch: Batch) -> tuple[np.longdouble, np.ndarray]:
    """Mean squared hinge over all pairs, and its gradient, by moments of the sorted negatives."""
    x = batch.scores.astype(np.longdouble)
    x -= np.median(batch.scores)
    is_pos = batch.labels == 1
    pos = x[is_pos]
    neg = x[~is_pos] + np.longdouble(batch.margin)
    grad = np.empty_like(x)

    ordered = np.sort(neg)
    first = np.searchsorted(ordered, pos, side="right")  # pairs with shortfall 0 have no loss
    count, total, squares = suffix_sums(ordered, first)
    loss = (squares - 2 * pos * total + count * pos**2).sum()
    grad[is_pos] = -2 * (total - count * pos)

    mirrored = np.sort(-pos)
    first = np.searchsorted(mirrored, -neg, side="right")
    count, total, _ = suffix_sums(mirrored, first)
    grad[~is_pos] = 2 * (total + count * neg)

    pairs = np.longdouble(pos.size) * neg.size
    return loss / pairs, grad / pairs


def suffix_sums(ordered: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, ...]:
    """Count, sum and sum of squares of ordered[first:], for each first."""

    def sums(values: np.ndarray) -> np.ndarray:
        tails = np.zeros(values.size + 1, np.longdouble)
        tails[:-1] = np.cumsum(values[::-1])[::-1]
        return tails[first]

    return (ordered.size - first).astype(np.longdouble), sums(ordered), sums(ordered**2)


def relative_errors(result: tuple, exact: tuple[np.longdouble, np.ndarray]) -> tuple[float, float]:
    """Relative error of the loss, and largest error of the gradient over its largest entry."""
    loss = result[0].item() if hasattr(result[0], "item") else result[0]  # a tensor, or a float
    grad = np.asarray(result[1])
    exact_loss, exact_grad = exact
    scale = np.abs(exact_grad).max()
    loss_error = abs(np.longdouble(loss) - exact_loss) / (exact_loss or 1)
    grad_error = np.abs(grad.astype(np.longdouble) - exact_grad).max() / (scale or 1)
    return float(loss_error), float(grad_error)


def cells(max_n: int) -> list[tuple[int, float, str, str]]:
    """All sizes and shares of positives with normal scores; all shapes of scores at two sizes."""
    sizes = itertools.product(powers_of_ten(2, 7), (0.5, 0.01, 0.001), ("normal",))
    shapes = itertools.product(powers_of_ten(5, 6), (0.5, 0.001), (*HARD, *OFFSET))
    return [
        (n, positives, dtype, shape)
        for n, positives, shape in (*sizes, *shapes)
        for dtype in ("float32", "float64")
        if n <= max_n
    ]


def run(settings: Settings, advance: Callable[[str], None]) -> Iterator[Row]:
    for n, positives, dtype, shape in cells(settings.max_n):
        advance(f"n {n}, positives {positives}, {dtype}, {shape}")
        data = batch(n, positives, dtype, shape)
        exact = sorted_squared_hinge(data)
        for contender in CONTENDERS:
            if contender != NATIVE and n > 10**6:
                continue  # slow, and the errors are those of a million rows
            with num_threads(2):
                call = call_of(contender, data)
                if call is None:
                    continue
                errors = relative_errors(call(), exact)
            for quantity, error in zip(("loss error", "gradient error"), errors, strict=True):
                yield row(
                    suite="accuracy",
                    n=n,
                    positives=positives,
                    threads=2,
                    dtype=dtype,
                    input=shape,
                    **contender._asdict(),
                    quantity=quantity,
                    **constant(error),
                )
