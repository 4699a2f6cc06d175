"""Survival times: a row with an event is to score higher than every row that lasted longer.

Scores are risks: the earlier the event, the higher the score. A pair counts if the earlier time is
an event. At equal times an event comes before a censored row, because that row was still at risk;
two events at one time, and two censored rows, are no pair. lifelines and scikit-survival compare
the same pairs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everypair.arrays.double_double import Arrays, Number
from everypair.arrays.rows import Runs
from everypair.inputs import convert
from everypair.inputs.ranked import target_from

Floats = NDArray[np.float64]

_FORMS = (
    "Pass (time, event) columns of shape (n, 2), scikit-survival's structured array, a tuple "
    "(times, events), or times that are negative where they are censored."
)


class Survival(NamedTuple):
    """Checked times and whether each is that of an event; both of shape (n,)."""

    times: Floats
    events: NDArray[np.bool_]


def survival_from(labels: Any) -> Survival:
    """Read times and events from any of the forms that `everypair.pair_loss` accepts.

    Examples
    --------
    >>> survival_from([[5.0, 1], [3.0, 0]])
    Survival(times=array([5., 3.]), events=array([ True, False]))
    >>> survival_from([5.0, -3.0]).events.tolist()
    [True, False]
    """
    if isinstance(labels, tuple) and len(labels) == 2:
        times, events = labels
        return _checked(times, convert.to_array(events, "labels"))
    array = convert.to_array(labels, "labels")
    if array.dtype.names is not None:
        return _from_fields(array)
    if array.ndim == 2 and array.shape[1] == 2:
        return _checked(array[:, 0], array[:, 1])
    if array.ndim == 1 or array.shape[1:] == (1,):
        # A censored time of zero is coded as -0.0.
        signed = convert.to_float64(target_from(array), "labels")
        return Survival(np.abs(signed), ~np.signbit(signed))
    raise ValueError(f"labels must hold times and events; got the shape {array.shape}. {_FORMS}")


def _from_fields(array: NDArray[Any]) -> Survival:
    names = array.dtype.names or ()
    kinds = [array.dtype[name].kind for name in names]
    if array.ndim != 1 or sorted(kind == "b" for kind in kinds) != [False, True]:
        raise ValueError(
            "labels must have one field of bools (the event) and one of numbers (the time); got "
            f"the fields {array.dtype}. {_FORMS}"
        )
    event = kinds.index("b")
    return _checked(array[names[1 - event]], array[names[event]])


def _checked(times: Any, events: NDArray[Any]) -> Survival:
    column = convert.to_float64(target_from(times, "times of labels"), "times of labels")
    events = convert.to_column(events, "events of labels")
    if events.shape != column.shape:
        raise ValueError(
            f"labels must have one event per time; got {events.shape[0]} events for "
            f"{column.shape[0]} times. {_FORMS}"
        )
    is_known = (events == 0) | (events == 1)
    if not np.all(is_known):
        i = int(np.argmin(is_known))
        raise ValueError(
            f"events of labels must be 1 (an event) or 0 (censored); got {events.tolist()[i]!r} "
            f"(first at index {i}). {_FORMS}"
        )
    below = column < 0.0
    if below.any():
        i = int(np.argmax(below))
        raise ValueError(
            f"times of labels must be at least 0; got {column[i].item()!r} (first at index {i}). "
            "Only times without a column of events are negative where they are censored."
        )
    return Survival(column, events.astype(bool))


def censoring_weights(xp: Arrays, times: Any, events: Any, weights: Any) -> Any:
    r"""Return the factors of winners for Uno's concordance: event / G(time)^2.

    G is the Kaplan-Meier estimate of the censoring distribution, from all (weighted) rows:

    .. math:: G(t) = \prod_{u \le t} \left(1 - \frac{c_u}{r_u - e_u}\right)

    where e and c are the weights of the events and the censored rows at time u, and r that of all
    rows from time u on. An event at a time where G is zero gets the weight zero.

    All arrays have the shape (..., n), and belong to the library of `xp`; `weights` are floats.

    Examples
    --------
    >>> from everypair.arrays.numpy import NumpyArrays
    >>> times, events = survival_from(([1.0, 2.0, 3.0], [1, 0, 1]))
    >>> censoring_weights(NumpyArrays(compensated=True), times, events, np.ones(3))
    array([1., 0., 4.])
    """
    # At one time the events come first. The factors of the censored rows of a time, one after the
    # other, multiply to that of the time: no sum is a difference of sums, which would cancel.
    order = xp.order([xp.as_uint8(~events), times])
    times, event, w = (xp.gather(a, order) for a in (times, events, weights))
    rows = xp.row_numbers(times)
    _, stop = xp.bounds(xp.running_count((rows == 0) | (times != xp.roll(times, 1))))
    at_risk = xp.flip(xp.prefix(Number(xp.flip(w)), Runs(xp, rows)).high)
    later = xp.where(rows == rows[-1], 0.0, xp.roll(at_risk, -1))
    share = later / xp.where(at_risk > 0.0, at_risk, 1.0)
    share = xp.where(event | (at_risk == 0.0), 1.0, share)
    survives = xp.gather(xp.running_product(share), stop)
    counts = event & (survives > 0.0)
    factors = xp.where(counts, 1.0 / xp.where(counts, survives, 1.0) ** 2, 0.0)
    return xp.scatter(factors, order)
