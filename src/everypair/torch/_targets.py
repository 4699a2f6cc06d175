"""Which pairs of tensors count: survival labels in one tensor, and the rows of a partial AUC."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from everypair.inputs import convert, pair_options
from everypair.torch import _arrays
from everypair.torch._compat import is_transformed
from everypair.torch._inputs import in_columns, in_rows

Labels = Tensor | tuple[Tensor, Tensor]


class PairOptions(NamedTuple):
    """Which pairs count: checked options of `pair_loss`.

    `kind` is the last entry of `everypair.torch._dispatch.Options`.
    """

    kind: str
    max_fpr: float | None
    min_tpr: float | None


BINARY = PairOptions("binary", None, None)
"""All pairs of a positive and a negative row."""


def check_pair_options(
    pairs: str, censoring: str, max_fpr: float | None, min_tpr: float | None
) -> PairOptions:
    """Check the options and return them."""
    if pairs == "binary" and censoring == "harrell" and max_fpr is None and min_tpr is None:
        return BINARY
    pair_options.check_pairs(pairs, censoring)
    rates = pair_options.check_rates(max_fpr, min_tpr, pairs)
    return PairOptions("uno" if censoring == "uno" else pairs, *rates)


def survival_labels(scores: Any, labels: Any, check: bool | None) -> Any:
    """Return times, negative where censored, in the shape of the scores.

    `labels` are a tuple (times, events), columns (time, event), or such times already.
    """
    if isinstance(labels, Tensor):
        is_one_task = isinstance(scores, Tensor) and scores.shape[1:].numel() == 1
        if not (is_one_task and labels.dim() == 2 and labels.shape[1] == 2):
            return labels
        labels = labels[:, 0], labels[:, 1]
    elif not (isinstance(labels, tuple) and len(labels) == 2):
        return labels
    times, events = labels
    if not (isinstance(times, Tensor) and isinstance(events, Tensor)):
        return times  # the checks of the labels report what they are
    if times.shape != events.shape:
        raise ValueError(
            "labels must have one event per time; got the shapes "
            f"{tuple(times.shape)} and {tuple(events.shape)}. Pass (times, events)."
        )
    wanted = times.is_cpu if check is None else check
    if wanted and not (torch.compiler.is_compiling() or is_transformed()):
        _check_survival(times, events)
    if not times.is_floating_point():
        times = times.to(torch.float32 if times.device.type == "mps" else torch.float64)
    # Where values cannot be read, the check of the labels finds NaN instead.
    signed = torch.where(events == 1, times, torch.where(events == 0, -times, torch.nan))
    return torch.where(times >= 0.0, signed, torch.nan)


def partial_weights(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    groups: Tensor | None,
    options: PairOptions,
) -> Tensor | None:
    """Return the weights of checked tensors, 0 for rows that a partial AUC leaves out."""
    if options.max_fpr is None and options.min_tpr is None:
        return weights
    widest = 1.0 if options.max_fpr is None else options.max_fpr
    found = _arrays.hardest_weights(
        *in_rows(scores, labels, weights, groups), widest, options.min_tpr or 0.0
    )
    return in_columns(found, scores)


def _check_survival(times: Tensor, events: Tensor) -> None:
    if times.dtype in (torch.int64, torch.uint64):
        convert.to_float64(times.flatten().cpu().numpy(), "times of labels")
    known = ((events == 0) | (events == 1)).flatten()
    if not bool(known.all()):
        i = int(known.int().argmin())
        raise ValueError(
            "events of labels must be 1 (an event) or 0 (censored); got "
            f"{events.flatten()[i].item()!r} (first at index {i}). Pass a tuple (times, events), "
            "columns (time, event) of shape (n, 2), or times that are negative where they are "
            "censored."
        )
    below = (times < 0.0).flatten()
    if bool(below.any()):
        i = int(below.int().argmax())
        raise ValueError(
            f"times of labels must be at least 0; got {times.flatten()[i].item()!r} (first at "
            f"index {i}). Only times without events are negative where they are censored."
        )
