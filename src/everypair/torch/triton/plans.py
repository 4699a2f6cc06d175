"""Triton's kernels behind one entry: which plan computes what, and how it is launched.

Small batches meet pair by pair. Large ones go through certified buckets where there is one term
b2 d^2 that vanishes at its knot with its slope, no weights, and no second derivative asked; through
moments of the classes where no term has a knot; and all others are sorted. Groups are left to the
operations of `_tensor_moments`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from everypair.torch.triton.buckets import buckets_fit, by_buckets
from everypair.torch.triton.launch import MOST_TASKS, Job
from everypair.torch.triton.moments import by_moments
from everypair.torch.triton.pairs import by_pairs
from everypair.torch.triton.sorted_rows import by_sort

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from everypair.torch.triton.launch import Trace

    KnotTerm = tuple[float, float, float, float, bool]
    Plan = Callable[[Job], Trace | None]
    Answer = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]

__all__ = ["evaluate", "prepared"]

MOST_ROWS = 1 << 29
"""Places of more would not fit in 32 bits."""
PAIRS_UP_TO: dict[Plan, int] = {by_moments: 1_500, by_buckets: 5_000, by_sort: 6_500}
"""Up to how many rows, pair by pair is faster than a plan."""


def evaluate(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    vector: Tensor | None,
    terms: tuple[KnotTerm, ...],
    **asked: Any,
) -> Answer | None:
    """Return values, pair weights and derivatives; None where no plan fits.

    The derivatives are the gradient, the Hessian times vector and the diagonal of the Hessian.

    Scores are (n,) or (tasks, n); what comes with them has the same shape. Batches of one class are
    added to the counter `one_class`; with it, no pair weights are returned.
    """
    found = prepared(scores, labels, weights, vector, terms, **asked)
    if found is None:
        return None
    plan, job = found
    plan(job)
    return job[7:12]


def prepared(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    vector: Tensor | None,
    terms: tuple[KnotTerm, ...],
    *,
    mean: bool,
    grad: bool,
    hess: bool = False,
    missing: bool = False,
    one_class: Tensor | None = None,
) -> tuple[Plan, Job] | None:
    """Return the plan that fits and all it needs, with room for its answers; None if none fits."""
    n = scores.shape[-1]
    tasks = scores.numel() // n
    if tasks > MOST_TASKS or n > MOST_ROWS:
        return None
    simple = weights is None and vector is None and not hess
    plan: Plan = by_sort
    if simple and buckets_fit(scores, tasks, terms):
        plan = by_buckets
    elif not any(truncated for *_, truncated in terms):
        plan = by_moments
    if n <= PAIRS_UP_TO[plan]:
        plan = by_pairs
    if labels.dtype is torch.bool:
        labels = labels.view(torch.uint8)
    scores, labels = scores.contiguous(), labels.contiguous()
    shape = scores.shape[:-1]
    dtype = torch.float64 if scores.dtype is torch.float64 else torch.float32
    value = torch.empty(shape, dtype=dtype, device=scores.device)
    pair_weight = None
    if one_class is None:
        pair_weight = torch.empty(shape, dtype=torch.float64, device=scores.device)
    grad_out = torch.empty_like(scores, dtype=dtype) if grad else None
    hvp_out = None if vector is None else torch.empty_like(scores, dtype=dtype)
    hess_out = torch.empty_like(scores, dtype=dtype) if hess else None
    return plan, Job(
        scores, labels, weights, vector, terms, mean, one_class,
        value, pair_weight, grad_out, hvp_out, hess_out, missing,
    )  # fmt: skip
