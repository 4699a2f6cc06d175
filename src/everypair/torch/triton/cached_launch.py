"""The same launches once more, for a batch like one that came before.

A small batch takes less time on a GPU than Python takes to find out which plan computes it, with
which kernels and how much room. All that depends on sizes and types alone, so it is written down
the first time: the launches, and whose address each of their arguments was.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from everypair.torch.triton.launch import current_stream, is_capturing
from everypair.torch.triton.plans import prepared

if TYPE_CHECKING:
    from torch import Tensor

    from everypair.torch.triton.launch import Job, KnotTerm, Trace

__all__ = ["loss_and_grad"]

_FIXED = 7  # what a recipe keeps itself, after the seven that `loss_and_grad` puts in place
_MOST_RECIPES, _MOST_SCRATCH = 1024, 64


class _Recipe(NamedTuple):
    """What to launch: runners, whose address plus how much each pointer is, all other arguments."""

    launches: list[tuple[Any, list[tuple[int, int]], tuple[float, ...]]]
    words: int
    counters: int
    kept: list[Tensor]


class _Scratch(NamedTuple):
    """Memory that launches of one thread on one stream use in turn."""

    words: Tensor
    counters: Tensor
    addresses: tuple[int, int]


_recipes: dict[tuple[object, ...], _Recipe] = {}
_scratch: dict[tuple[int, int, int], _Scratch] = {}


def loss_and_grad(
    scores: Tensor,
    labels: Tensor,
    terms: tuple[KnotTerm, ...],
    mean: bool,
    missing: bool,
    one_class: Tensor | None,
) -> tuple[Tensor, None, Tensor] | None:
    """Return value, no pair weight, and gradient of scores of shape (n,), or None if it must wait.

    Scores are float32 or float64 on the current device, and nothing is weighted.
    """
    device = scores.device
    if not (scores.is_contiguous() and labels.is_contiguous()) or is_capturing():
        return None
    n, counted, stream = scores.shape[0], one_class is not None, current_stream(device)
    key = n, scores.dtype, labels.dtype, device, stream, terms, mean, missing, counted
    recipe = _recipes.get(key)
    if recipe is None:
        return _first(key, scores, labels, terms, mean, missing, one_class)
    place = device.index, stream, get_ident()
    scratch = _scratch.get(place)
    if scratch is None or scratch.words.numel() < recipe.words:
        scratch = _scratch[place] = _new_scratch(device, recipe)
    value = scores.new_empty(())
    grad = torch.empty_like(scores)
    at_value = value.data_ptr()
    addresses = (
        scores.data_ptr(), labels.data_ptr(), at_value, grad.data_ptr(),
        at_value if one_class is None else one_class.data_ptr(), *scratch.addresses, 0,
    )  # fmt: skip
    if (addresses[0] | addresses[1]) & 15:
        return None
    for run, pointers, rest in recipe.launches:
        run(*[addresses[whose] + more for whose, more in pointers], *rest, stream=stream)
    return value, None, grad


def _first(
    key: tuple[object, ...],
    scores: Tensor,
    labels: Tensor,
    terms: tuple[KnotTerm, ...],
    mean: bool,
    missing: bool,
    one_class: Tensor | None,
) -> tuple[Tensor, None, Tensor] | None:
    """Compute it the long way and write the recipe down, if there is one."""
    found = prepared(
        scores, labels, None, None, terms,
        mean=mean, grad=True, missing=missing, one_class=one_class,
    )  # fmt: skip
    if found is None:
        return None
    plan, job = found
    trace = plan(job)
    # One address for two of them would be taken for one of them ever after.
    apart = scores.data_ptr() != labels.data_ptr()
    if trace is not None and None not in trace.launched and apart:
        if len(_recipes) >= _MOST_RECIPES:
            _recipes.clear()
        _recipes[key] = _recipe(job, trace)
    return job.value, None, job.grad  # type: ignore[return-value]


def _recipe(job: Job, trace: Trace) -> _Recipe:
    owners = [job.scores, job.labels, job.value, job.grad, job.one_class, trace.room]
    owners.append(trace.counters)
    spans = [
        (whose, owner.data_ptr(), owner.data_ptr() + owner.nbytes)
        for whose, owner in enumerate(owners)
        if owner is not None
    ]
    kept: list[Tensor] = []

    def whose(pointer: Tensor) -> tuple[int, int]:
        address = pointer.data_ptr()
        for owner, start, end in spans:
            if start <= address < end:
                return owner, address - start
        kept.append(pointer)
        return _FIXED, address

    launches = [
        (run, [*map(whose, pointers)], rest) for run, pointers, rest in filter(None, trace.launched)
    ]
    return _Recipe(launches, trace.room.numel(), trace.counters.numel(), kept)


def _new_scratch(device: torch.device, recipe: _Recipe) -> _Scratch:
    if len(_scratch) >= _MOST_SCRATCH:
        _scratch.clear()
    words = torch.empty(recipe.words, dtype=torch.float64, device=device)
    counters = torch.zeros(max(recipe.counters, 16), dtype=torch.int32, device=device)
    return _Scratch(words, counters, (words.data_ptr(), counters.data_ptr()))
