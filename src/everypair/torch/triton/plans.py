"""Choose the plan that computes a batch on a GPU.

==============  ===================================================================================
plan            taken when
==============  ===================================================================================
`by_pairs`      n is at most PAIRS_UP_TO of the plan that follows from the next three lines
`by_buckets`    one truncated term b2 d^2; float32 or narrower scores; no weights, vector or
                Hessian; rows and tasks within the limits of `buckets_fit`
`by_moments`    otherwise, no term is truncated
`by_sort`       otherwise
none            there are groups, more than MOST_TASKS tasks or MOST_ROWS rows: torch operations
==============  ===================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from everypair.surrogates import KnotTerm
from everypair.torch.triton.buckets import buckets_fit, by_buckets
from everypair.torch.triton.launch import MOST_TASKS, Job, Trace
from everypair.torch.triton.moments import by_moments
from everypair.torch.triton.pairs import by_pairs
from everypair.torch.triton.sorted_rows import by_sort

Plan = Callable[[Job], Trace | None]
Results = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]

MOST_ROWS = 1 << 29
"""Offsets of more rows do not fit in 32 bits."""
PAIRS_UP_TO: dict[Plan, int] = {by_moments: 1_500, by_buckets: 5_000, by_sort: 6_500}
"""Up to how many rows `by_pairs` is faster than a plan."""


def evaluate(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    vector: Tensor | None,
    terms: tuple[KnotTerm, ...],
    **options: Any,
) -> Results | None:
    """Return (value, pair_weight, grad, hess, hvp), or None if no plan fits.

    Parameters
    ----------
    scores, labels, weights, vector : (n,) or (tasks, n)
        All of one shape; `value` and `pair_weight` have it without the rows.
    terms
        The surrogate.
    options
        See `prepared`. With the counter `one_class` there is no pair weight.
    """
    found = prepared(scores, labels, weights, vector, terms, **options)
    if found is None:
        return None
    plan, job = found
    plan(job)
    return job.value, job.pair_weight, job.grad, job.hess, job.hvp


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
    """Return the plan that fits and its job, with tensors for the results; None if none fits."""
    n = scores.shape[-1]
    tasks = scores.numel() // n
    if tasks > MOST_TASKS or n > MOST_ROWS:
        return None
    plan: Plan = by_sort
    if weights is None and vector is None and not hess and buckets_fit(scores, tasks, terms):
        plan = by_buckets
    elif not any(term[-1] for term in terms):
        plan = by_moments
    if n <= PAIRS_UP_TO[plan]:
        plan = by_pairs
    if labels.dtype is torch.bool:
        labels = labels.view(torch.uint8)
    scores = scores.contiguous()
    dtype = torch.float64 if scores.dtype is torch.float64 else torch.float32
    shape = scores.shape[:-1]
    return plan, Job(
        scores=scores,
        labels=labels.contiguous(),
        weights=None if weights is None else weights.contiguous(),
        vector=None if vector is None else vector.contiguous(),
        terms=terms,
        mean=mean,
        missing=missing,
        one_class=one_class,
        value=torch.empty(shape, dtype=dtype, device=scores.device),
        pair_weight=None
        if one_class is not None
        else torch.empty(shape, dtype=torch.float64, device=scores.device),
        grad=torch.empty_like(scores, dtype=dtype) if grad else None,
        hess=torch.empty_like(scores, dtype=dtype) if hess else None,
        hvp=None if vector is None else torch.empty_like(scores, dtype=dtype),
    )
