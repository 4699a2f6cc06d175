"""Call the public functions on every backend, and compare their results with exact arithmetic."""

from __future__ import annotations

import contextlib
import math
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

import everypair as ep
from everypair import surrogates
from everypair.arrays import uneven_groups
from everypair.kernel import choose

from .batches import ZERO_ONE
from .oracle import exact
from .scales import TOLERANCE, scales_of
from .smooth import double_sum

if find_spec("torch"):
    import torch

    import everypair.torch as ept
    from everypair.torch._dispatch import forced

AUC_TOLERANCE = 1e-15
THREADED_ROWS = (1 << 15) - 2  # with as many the compiled kernel may use several threads


class Checked(NamedTuple):
    """One result of one backend: its error as a share of the allowed one; a failure if above 1."""

    quantity: str
    error: float
    note: str = ""


def native(isa):
    def calls(batch):
        choose.native.kernel.use_isa(isa)
        yield from array_calls(batch, "native")

    return calls


def array_calls(batch, backend="numpy"):
    """Yield functions that return the results of a public one: its name, a field of Answer, it."""
    with choose.backend(backend):
        yield from calls_of_arrays(batch)


def calls_of_arrays(batch):
    data, options = (batch.scores, batch.labels), batch.options

    def loss_and_grad(**changed):
        value, grad = ep.pair_loss_and_grad(*data, **{**options, **changed})
        return [("pair_loss_and_grad", "value", value), ("pair_loss_and_grad", "grad", grad)]

    def derivatives():
        found = ep.pair_derivatives(*data, **options)
        return [("pair_derivatives", name, getattr(found, name)) for name in found._fields]

    def auc():
        try:
            found = ep.auc(*data, weights=batch.weights, groups=batch.groups, pairs=batch.pairs)
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


def operations(batch):
    with forced("operations"):
        yield from tensor_calls(batch, "operations")


def tensor_calls(batch, name="PairLoss"):
    labels = torch.from_numpy(batch.labels)
    data = {
        key: None if array is None else torch.from_numpy(np.asarray(array))
        for key, array in (("weights", batch.weights), ("groups", batch.groups))
    }
    options = {key: batch.options[key] for key in ("surrogate", "margin", "reduction")}
    options["pairs"] = batch.pairs

    def module():
        scores = torch.from_numpy(batch.scores).requires_grad_()
        loss = ept.PairLoss(**options)(scores, labels, **data)
        loss.backward()
        return [(name, "value", loss.item()), (name, "grad", scores.grad.numpy())]

    def derivatives():
        found = ept.pair_derivatives(torch.from_numpy(batch.scores), labels, **options, **data)
        return [(f"{name} derivatives", key, getattr(found, key).numpy()) for key in found._fields]

    def hvp():
        scores = torch.from_numpy(batch.scores).requires_grad_()
        loss = ept.PairLoss(**options)(scores, labels, **data)
        (grad,) = torch.autograd.grad(loss, scores, create_graph=True)
        if not grad.requires_grad:  # no pair
            return []
        vector = torch.from_numpy(batch.vector.astype(batch.scores.dtype))
        (product,) = torch.autograd.grad(grad, scores, vector)
        return [(f"{name} hvp", "hvp", product.numpy())]

    yield module
    yield derivatives
    if batch.scores.dtype == np.float64 and "extreme" not in batch.kind:
        yield hvp  # the vector of float32 scores would be rounded


OTHERS = {"numpy": array_calls}
if find_spec("torch"):
    OTHERS |= {"operations": operations, "torch": tensor_calls}


def check(batch, backends):
    """Yield the name of each backend with each of its results, compared with the exact one."""
    if batch.surrogate.is_polynomial:
        expected = exact(batch)
        scales = scales_of(batch, expected)
    else:
        expected, scales = double_sum(batch)
    for backend, calls in backends.items():
        if backend == "operations" and (scales.overflows or has_uneven_groups(batch)):
            continue  # documented: infinite without an error, and the digits of light groups
        for call in calls(batch):
            for checked in compared(call, batch, expected, scales):
                yield backend, checked
        if batch.scores.size >= THREADED_ROWS and backend not in ("numpy", "operations"):
            yield backend, threads_agree(batch, calls)


def has_uneven_groups(batch):
    if batch.groups is None or batch.weights is None:
        return False
    order = np.argsort(batch.groups, kind="stable")
    starts = np.flatnonzero(np.diff(batch.groups[order])) + 1
    offsets = np.array([0, *starts, order.size])
    return uneven_groups.are_uneven(batch.positive[order], batch.weights[order], offsets)


def compared(call, batch, expected, scales):
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


def compare(name, field, got, batch, expected, scales):
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
        beyond |= scales.unbounded & np.isinf(got)
        error[(got == want) | beyond] = 0.0
        # Results next to the smallest number of their type have few digits. Beside a constant,
        # which cannot be scaled with the scores, these are all below the documented 1e-290.
        beside = field != "value" and any(getattr(term, "c0", 0) for term in batch.surrogate.terms)
        allowed = TOLERANCE[dtype] * scale + 4 * tiny + (1e-290 if beside else 1e-320)
        share = np.where(np.isnan(error), np.inf, np.where(error == 0.0, 0.0, error / allowed))
        share[(allowed > top) & ~np.isnan(got)] = 0.0
        share[np.isnan(want)] = 0.0  # infinite parts of both signs
        if counts_pairs(batch, field):
            share = np.where(want.astype(narrow) == got, 0.0, np.inf)
    worst = int(np.argmax(share))
    note = f"row {worst}: got {got[worst]!r}, expected {want[worst]!r}"
    return Checked(name, float(share[worst]), note)


def counts_pairs(batch, field):
    """Return whether the result is a sum of whole numbers over the pairs that count.

    Then it must be exact: a single pair on the wrong side of its knot is an error.
    """
    if batch.reduction != "sum" or batch.pairs != "binary":
        return False
    if batch.weights is not None and (batch.weights != np.clip(batch.weights.round(), 0, 9)).any():
        return False
    return (batch.surrogate, field) in (
        (ZERO_ONE, "value"),
        (surrogates.LINEAR_HINGE, "grad"),
        (surrogates.SQUARED_HINGE, "hess"),
    )


def threads_agree(batch, calls):
    """Compare the bits of all results with one, two and three threads."""
    answers = set()
    for threads in (1, 2, 3):
        ep.set_num_threads(threads)
        results = []
        for call in calls(batch):
            with contextlib.suppress(OverflowError):
                results += [np.asarray(result).tobytes() for *_, result in call()]
        answers.add(tuple(results))
    ep.set_num_threads(None)
    return Checked("threads", 0.0 if len(answers) == 1 else math.inf, "1, 2 and 3 threads")
