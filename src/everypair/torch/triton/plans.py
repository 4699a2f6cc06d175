"""Choose the plan that computes a batch on a GPU.

==============  ===================================================================================
plan            taken when
==============  ===================================================================================
`by_pairs`      n is at most PAIRS_UP_TO of the plan that follows from the next three lines
`by_buckets`    one truncated term b2 d^2; float32 or narrower scores; no weights, vector or
                Hessian; rows and tasks within the limits of `buckets_fit`
`by_moments`    otherwise, no term is truncated
`by_sort`       otherwise
`by_powers`     terms that are no polynomials, if `takes` accepts them; any n
==============  ===================================================================================

Batches with groups, more than MOST_TASKS tasks, more than MOST_ROWS rows or other terms are not
computed here: `everypair.torch._dispatch` leaves them to torch operations. Ordered and survival
pairs have a plan of their own, `ordered.by_levels`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from everypair.surrogates import PairTerm, are_polynomials
from everypair.torch.triton.buckets import buckets_fit, by_buckets
from everypair.torch.triton.common.launch import Job, Trace
from everypair.torch.triton.moments import by_moments
from everypair.torch.triton.pairs import by_pairs
from everypair.torch.triton.smooth.plan import by_powers
from everypair.torch.triton.smooth.terms import takes
from everypair.torch.triton.sorted_rows import by_sort

Plan = Callable[[Job], Trace | None]
Results = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]

MOST_TASKS = 65_535
"""Most programs of a launch along its second axis."""
MOST_ROWS = 1 << 29
"""Offsets of more rows do not fit in 32 bits."""
PAIRS_UP_TO: dict[Plan, int] = {by_moments: 1_500, by_buckets: 5_000, by_sort: 6_500}
"""Up to how many rows `by_pairs` is faster than a plan, of those that take polynomials."""


def can_take(terms: tuple[PairTerm, ...]) -> bool:
    """Return whether a plan computes these terms."""
    return are_polynomials(terms) or takes(terms)


def evaluate(*batch: Any, **options: Any) -> Results:
    """Return (value, pair_weight, grad, hess, hvp); see `prepared` for the parameters."""
    plan, job = prepared(*batch, **options)
    plan(job)
    return job.value, job.pair_weight, job.grad, job.hess, job.hvp


def prepared(
    scores: Tensor, labels: Tensor, weights: Tensor | None, vector: Tensor | None,
    terms: tuple[PairTerm, ...], *, mean: bool, grad: bool, hess: bool = False,
    missing: bool = False, one_class: Tensor | None = None,
) -> tuple[Plan, Job]:  # fmt: skip
    """Return the plan that fits and its job, with tensors for the results.

    Parameters
    ----------
    scores, labels, weights, vector : (n,) or (tasks, n)
        All of one shape; `value` and `pair_weight` have it without the rows.
    terms, mean, missing, one_class
        See `launch.Job`. With the counter `one_class` there is no pair weight.
    grad, hess
        Which derivatives to compute, besides `hvp` if there is a vector.
    """
    n = scores.shape[-1]
    tasks = scores.numel() // n
    plan: Plan = by_sort
    if not are_polynomials(terms):
        plan = by_powers
    elif weights is None and vector is None and not hess and buckets_fit(scores, tasks, terms):
        plan = by_buckets
    elif not any(term[-1] for term in terms):
        plan = by_moments
    if n <= PAIRS_UP_TO.get(plan, 0):
        plan = by_pairs
    if labels.dtype is torch.bool:
        labels = labels.view(torch.uint8)
    scores, labels = scores.contiguous(), labels.contiguous()
    weights, vector = (None if x is None else x.contiguous() for x in (weights, vector))
    dtype = torch.float64 if scores.dtype is torch.float64 else torch.float32
    value = scores.new_empty(scores.shape[:-1], dtype=dtype)
    return plan, Job(
        scores, labels, weights, vector, terms, mean, missing, one_class, value,
        pair_weight=torch.empty_like(value, dtype=torch.float64) if one_class is None else None,
        grad=torch.empty_like(scores, dtype=dtype) if grad else None,
        hess=torch.empty_like(scores, dtype=dtype) if hess else None,
        hvp=None if vector is None else torch.empty_like(scores, dtype=dtype),
    )  # fmt: skip
