"""Call the public functions on every backend, and compare their results with exact arithmetic."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import everypair as ep
from benchmarks.fuzz.batches import ZERO_ONE, Batch
from benchmarks.fuzz.oracle import Answer, exact
from everypair import _dispatch, surrogates
from everypair.arrays import uneven_groups

with contextlib.suppress(ImportError):
    import torch

    import everypair.torch as ept
    from everypair.torch._dispatch import forced

TOLERANCE = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}
AUC_TOLERANCE = 1e-15
# With as many rows the compiled kernel may use several threads.
THREADED_ROWS = 1 << 15


class Checked(NamedTuple):
    """One result of one backend: its error as a share of the allowed one; a failure if above 1."""

    quantity: str
    error: float
    note: str = ""


class Scales(NamedTuple):
    """What errors are relative to: sums over pairs of absolute values, the largest of each class.

    Sums of pairs may cancel, and terms that cancel leave rounding errors of their value next to
    their knots. `rounding` is the error due to coefficients that are rounded themselves.
    """

    value: float
    grad: np.ndarray
    hess: np.ndarray
    hvp: np.ndarray
    overflows: bool  # whether an OverflowError is right
    unbounded: bool  # whether weights of pairs overflow, so that any result but NaN is right


Result = tuple[str, str, Any]  # name of the function, field of Answer, and what it returned


def native(isa: str) -> Callable[[Batch], Iterator[Callable[[], list[Result]]]]:
    def calls(batch: Batch) -> Iterator[Callable[[], list[Result]]]:
        _dispatch._native.use_isa(isa)  # type: ignore[attr-defined]
        with _dispatch.backend("native"):
            yield from array_calls(batch)

    return calls


def on_numpy(batch: Batch) -> Iterator[Callable[[], list[Result]]]:
    with _dispatch.backend("numpy"):
        yield from array_calls(batch)


def array_calls(batch: Batch) -> Iterator[Callable[[], list[Result]]]:
    data, options = (batch.scores, batch.labels), batch.options

    def loss_and_grad(**changed: Any) -> list[Result]:
        value, grad = ep.pair_loss_and_grad(*data, **{**options, **changed})
        return [("pair_loss_and_grad", "value", value), ("pair_loss_and_grad", "grad", grad)]

    def derivatives() -> list[Result]:
        found = ep.pair_derivatives(*data, **options)
        return [("pair_derivatives", name, getattr(found, name)) for name in found._fields]

    def auc() -> list[Result]:
        try:
            found = ep.auc(*data, weights=batch.weights, groups=batch.groups)
        except ValueError:  # no pair
            found = None
        return [("auc", "auc", found)]

    yield lambda: [("pair_loss", "value", ep.pair_loss(*data, **options))]
    yield loss_and_grad
    yield derivatives
    yield lambda: [("pair_hvp", "hvp", ep.pair_hvp(*data, batch.vector, **options))]
    yield auc
    if batch.weights is not None and batch.reduction == "mean" and batch.weights.any():
        # A common power of two changes no mean.
        live = np.log2(batch.weights[batch.weights > 0])
        low, high = -1000 - live.min(), 1000 - live.max()
        for power in (math.ceil(low), math.floor(high)):
            if low <= power <= high:
                scaled = np.ldexp(batch.weights, power)
                yield lambda scaled=scaled: loss_and_grad(weights=scaled)


def on_torch(batch: Batch) -> Iterator[Callable[[], list[Result]]]:
    yield from tensor_calls(batch, "PairLoss")


def on_torch_operations(batch: Batch) -> Iterator[Callable[[], list[Result]]]:
    with forced("operations"):
        yield from tensor_calls(batch, "operations")


def tensor_calls(batch: Batch, name: str) -> Iterator[Callable[[], list[Result]]]:
    labels = torch.from_numpy(batch.labels)
    data = {
        key: None if array is None else torch.from_numpy(np.asarray(array))
        for key, array in (("weights", batch.weights), ("groups", batch.groups))
    }
    options = {key: batch.options[key] for key in ("surrogate", "margin", "reduction")}

    def module() -> list[Result]:
        scores = torch.from_numpy(batch.scores).requires_grad_()
        loss = ept.PairLoss(**options)(scores, labels, **data)
        loss.backward()
        return [(name, "value", loss.item()), (name, "grad", scores.grad.numpy())]

    def derivatives() -> list[Result]:
        found = ept.pair_derivatives(torch.from_numpy(batch.scores), labels, **options, **data)
        return [(f"{name} derivatives", key, getattr(found, key).numpy()) for key in found._fields]

    yield module
    yield derivatives


def check(batch: Batch, backends: dict[str, Callable]) -> Iterator[tuple[str, Checked]]:
    """Yield the name of each backend with each of its results, compared with the exact one."""
    expected = exact(batch)
    scales = scales_of(batch, expected)
    for backend, calls in backends.items():
        if backend == "operations" and (scales.overflows or has_uneven_groups(batch)):
            continue  # documented: infinite without an error, and the digits of light groups
        for call in calls(batch):
            for checked in compared(call, batch, expected, scales):
                yield backend, checked
        if batch.scores.size >= THREADED_ROWS - 2 and backend not in ("numpy", "operations"):
            yield backend, threads_agree(batch, calls)


def has_uneven_groups(batch: Batch) -> bool:
    if batch.groups is None or batch.weights is None:
        return False
    order = np.argsort(batch.groups, kind="stable")
    starts = np.flatnonzero(np.diff(batch.groups[order])) + 1
    offsets = np.array([0, *starts, order.size])
    return uneven_groups.are_uneven(batch.positive[order], batch.weights[order], offsets)


def compared(
    call: Callable[[], list[Result]], batch: Batch, expected: Answer, scales: Scales
) -> Iterator[Checked]:
    try:
        results = call()
    except OverflowError as error:
        fine = scales.overflows and "float64" in str(error)
        yield Checked("overflow", 0.0 if fine else math.inf, f"OverflowError: {error}")
        return
    except Exception as error:
        yield Checked("exception", math.inf, f"{type(error).__name__}: {error}")
        return
    for function, field, got in results:
        yield compare(f"{function} {field}", field, got, batch, expected, scales)


def compare(
    name: str, field: str, got: Any, batch: Batch, expected: Answer, scales: Scales
) -> Checked:
    want = getattr(expected, field)
    if got is None or want is None:
        return Checked(name, 0.0 if got is want else math.inf, f"got {got}, expected {want}")
    if field == "auc":
        return Checked(name, abs(got - want) / AUC_TOLERANCE, f"got {got!r}, expected {want!r}")
    dtype = batch.scores.dtype
    got = np.atleast_1d(np.asarray(got, np.float64))
    want = np.atleast_1d(want)
    scale = getattr(scales, field)
    if field != "value":
        scale = np.where(batch.positive, scale[1], scale[0])
    instead = math.inf if scales.unbounded else np.abs(want).max()
    scale = np.where(np.isfinite(scale), scale, instead)
    narrow = np.float64 if field == "value" and name.startswith("pair") else dtype
    top, tiny = float(np.finfo(narrow).max), float(np.finfo(narrow).smallest_subnormal)
    with np.errstate(all="ignore"):
        error = np.abs(got - want)
        # Results beyond the range of their type are infinite, or the largest number.
        beyond = (np.abs(want) > 0.999 * top) & (np.abs(got) >= 0.999 * top) & (got * want > 0)
        error[(got == want) | beyond] = 0.0
        # Results next to the smallest number of their type have few digits.
        allowed = TOLERANCE[dtype] * scale + 4 * tiny + 1e-320
        share = np.where(np.isnan(error), np.inf, np.where(error == 0.0, 0.0, error / allowed))
        share[(allowed > top) & ~np.isnan(got)] = 0.0
        if counts_pairs(batch, field):
            share = np.where(want.astype(narrow) == got, 0.0, np.inf)
    worst = int(np.argmax(share))
    note = f"row {worst}: got {got[worst]!r}, expected {want[worst]!r}"
    return Checked(name, float(share[worst]), note)


def counts_pairs(batch: Batch, field: str) -> bool:
    """Return whether the result is a sum of whole numbers over the pairs that count.

    Then it must be exact: a single pair on the wrong side of its knot is an error.
    """
    if batch.reduction != "sum":
        return False
    if batch.weights is not None and (batch.weights != np.clip(batch.weights.round(), 0, 9)).any():
        return False
    return (batch.surrogate, field) in (
        (ZERO_ONE, "value"),
        (surrogates.LINEAR_HINGE, "grad"),
        (surrogates.SQUARED_HINGE, "hess"),
    )


def threads_agree(batch: Batch, calls: Callable) -> Checked:
    """Compare the bits of all results with one, two and three threads."""
    found = []
    for threads in (1, 2, 3):
        ep.set_num_threads(threads)
        answers = []
        for call in calls(batch):
            with contextlib.suppress(OverflowError):
                answers += [np.asarray(got).tobytes() for *_, got in call()]
        found.append(answers)
    ep.set_num_threads(None)
    same = found[0] == found[1] == found[2]
    return Checked("threads", 0.0 if same else math.inf, "1, 2 and 3 threads")


def scales_of(batch: Batch, expected: Answer) -> Scales:
    most = 600  # rows of a class; larger classes are sampled
    pos, neg = (sample(batch, np.flatnonzero(of), most) for of in (batch.positive, ~batch.positive))
    s, v, top = batch.scores.astype(np.float64), batch.vector, np.finfo(np.float64).max
    w = np.ones(s.size) if batch.weights is None else batch.weights
    with np.errstate(all="ignore"):
        # Weights relative to the largest of their class; `unit` is the product of the largest ones.
        largest = [w[of].max(initial=0.0) or 1.0 for of in (batch.positive, ~batch.positive)]
        u = w / np.where(batch.positive, *largest)
        together = np.outer(u[pos], u[neg])
        if batch.groups is not None:
            together = together * (batch.groups[pos][:, None] == batch.groups[neg])
        grow = np.count_nonzero(batch.positive) / max(pos.size, 1)
        grow_neg = np.count_nonzero(~batch.positive) / max(neg.size, 1)
        unit = largest[0] * largest[1]
        if batch.reduction == "mean":
            unit = 1.0 / (pair_weight(batch, u) or 1.0)
        t = np.clip((s[neg] - s[pos][:, None]) + batch.margin, -top, top)
        far = float(np.abs(t).max(initial=0.0))
        sizes, rounding = sizes_of(batch, float(t.max(initial=-top)))
        if any(term.knot is None for term in batch.surrogate.terms):
            # Such terms are evaluated at t itself, which is a rounded difference.
            blur = np.finfo(np.float64).eps * (np.abs(s[neg] - s[pos][:, None]) + batch.margin)
            blur = np.minimum(4 * blur / TOLERANCE[batch.scores.dtype], 1e150)
        else:
            blur = np.zeros_like(t)
        of_t = [np.abs(f(t)) + size for f, size in zip(functions(batch), sizes, strict=True)]
        second = blur * blur * TOLERANCE[batch.scores.dtype]
        pairs = [
            together * (of_t[0] + of_t[1] * blur + of_t[2] * second),
            together * (of_t[1] + of_t[2] * blur),
            together * of_t[2],
        ]
        spread = np.abs(v[pos][:, None] - v[neg])
        pairs.append(together * (of_t[2] * spread + sizes[2] * (v.max() - v.min())))
        by_class = [
            np.array([p.sum(0).max(initial=0.0) * grow, p.sum(1).max(initial=0.0) * grow_neg])
            for p in pairs
        ]
        share = np.array([together.sum(0).max(initial=0.0), together.sum(1).max(initial=0.0)])
        of_pair = max(
            abs(term.c0) + abs(term.c1) * (far + batch.margin) + abs(term.c2) * far * far
            for term in batch.surrogate.terms
        )
        extra = rounding / TOLERANCE[batch.scores.dtype]
        arrays = [
            np.maximum(
                unit * (scale + share * added),
                [np.abs(exact[of]).max(initial=0.0) for of in (~batch.positive, batch.positive)],
            )
            for scale, exact, added in zip(
                by_class[1:], expected[1:4], (extra[1], extra[2], extra[2]), strict=True
            )
        ]
        total = (pairs[0].sum() + together.sum() * extra[0]) * grow * grow_neg * unit
        value = max(float(total), abs(expected.value))
        overflows = not (of_pair * s.size**2 * max(unit, 1.0) < 1e290)
    return Scales(value, *arrays, overflows, not math.isfinite(unit))


def sample(batch: Batch, rows: np.ndarray, most: int) -> np.ndarray:
    """Return every k-th row of a class in the order of its scores, the two ends included."""
    if rows.size <= most:
        return rows
    order = rows[np.argsort(batch.scores[rows], kind="stable")]
    return order[np.linspace(0, rows.size - 1, most).astype(int)]


def pair_weight(batch: Batch, u: np.ndarray) -> float:
    groups = np.zeros(u.size, int) if batch.groups is None else batch.groups.astype(int)
    of_pos, of_neg = (
        np.bincount(groups, np.where(of, u, 0.0)) for of in (batch.positive, ~batch.positive)
    )
    return float(of_pos @ of_neg)


def functions(batch: Batch) -> tuple[Callable, Callable, Callable]:
    return batch.surrogate.value, batch.surrogate.slope, batch.surrogate.curvature


def sizes_of(batch: Batch, most: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the size of value, slope and curvature next to the knots, and rounding errors there.

    Terms whose knots no pair reaches are left out, and so are those of surrogates of one term.
    """
    sizes, rounding = np.zeros(3), np.zeros(3)
    terms = [t for t in batch.surrogate.terms if t.knot is not None]
    for term in terms:
        k = term.knot
        if len(batch.surrogate.terms) > 1 and k <= most:
            for t in (k, np.nextafter(k, np.inf)):
                at = (
                    batch.surrogate.value(t),
                    batch.surrogate.slope(t),
                    batch.surrogate.curvature(t),
                )
                sizes = np.maximum(sizes, np.abs(at))
        if k:
            parts = abs(term.c0) + abs(term.c1 * k) + abs(term.c2 * k * k)
            rounding += [parts, abs(term.c1) + 2 * abs(term.c2 * k), 0.0]
    # Weighted distances may be denormal numbers.
    return sizes, 8 * np.finfo(np.float64).eps * rounding + 16 * np.finfo(
        np.float64
    ).smallest_subnormal
