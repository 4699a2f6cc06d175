"""Replay the launches of an earlier batch of the same size and type with new tensors.

A small batch takes less time on a GPU than Python takes to choose its plan, kernels and work space.
These depend on sizes and types alone. The first batch goes through `plans`, and its launches are
kept as a `_Recipe`: for each pointer argument, which of the tensors in `SLOTS` it is. Every later
batch looks the recipe up, fills in its own addresses, and launches.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from threading import get_ident
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from everypair.surrogates import PairTerm
from everypair.torch._compat import current_raw_stream as current_stream
from everypair.torch.triton.common.launch import PLACEHOLDERS, Trace, is_capturing
from everypair.torch.triton.plans import prepared

_Launch = tuple[Any, Callable[[tuple[int, ...]], tuple[int, ...]], tuple[float, ...]]

SLOTS = (
    "scores", "labels", "value", "grad", "one_class",  # of the call
    "workspace", "counters", "pair_weight",  # of the thread and stream: `_Scratch`
    "terms",  # of the recipe
)  # fmt: skip
"""The tensors of a replay, in the order of its addresses."""

_MOST_RECIPES, _MOST_SCRATCH = 1024, 64


class _Recipe(NamedTuple):
    """Launches: a function, the addresses it takes out of those of `SLOTS`, its other arguments."""

    launches: list[_Launch]
    n_words: int
    n_counters: int
    terms: Tensor | None
    address_of_terms: int


class _Scratch(NamedTuple):
    """Memory that the launches of one thread on one stream use one after the other."""

    n_words: int
    n_counters: int
    addresses: tuple[int, int, int]  # of workspace, counters, and a pair weight that nobody reads
    tensors: tuple[Tensor, Tensor]


_recipes: dict[tuple[object, ...], _Recipe] = {}
_scratch: dict[tuple[int, int, int], _Scratch] = {}


def loss_and_grad(
    scores: Tensor, labels: Tensor, terms: tuple[PairTerm, ...],
    mean: bool, missing: bool, one_class: Tensor | None,
) -> tuple[Tensor, None, Tensor] | None:  # fmt: skip
    """Return value, None for the pair weight, and gradient; or None if `plans` has to do it.

    Parameters
    ----------
    scores : (n,) float32 or float64
        On the current device.
    labels, terms, mean, missing, one_class
        See `launch.Job`. There are no weights.

    Returns
    -------
    (value, None, grad) or None
        None while a CUDA graph is captured, if scores or labels are not contiguous, and if the
        address of a tensor is not a multiple of 16, as the compiled kernels assume.
    """
    device = scores.device
    if not (scores.is_contiguous() and labels.is_contiguous()) or is_capturing():
        return None
    n, counted, stream = scores.shape[0], one_class is not None, current_stream(device)
    key = n, scores.dtype, labels.dtype, device, stream, terms, mean, missing, counted
    recipe = _recipes.get(key)
    if recipe is None:
        plan, job = prepared(
            scores, labels, None, None, terms,
            mean=mean, grad=True, missing=missing, one_class=one_class,
        )  # fmt: skip
        _keep(key, plan(job))
        return job.value, None, cast("Tensor", job.grad)
    place = device.index, stream, get_ident()
    scratch = _scratch.get(place)
    n_words, n_counters = recipe.n_words, recipe.n_counters
    if scratch is None or scratch.n_words < n_words or scratch.n_counters < n_counters:
        scratch = _scratch[place] = _new_scratch(device, n_words, n_counters)
    value = scores.new_empty(())
    grad = torch.empty_like(scores)
    at_value = value.data_ptr()
    addresses = (
        scores.data_ptr(), labels.data_ptr(), at_value, grad.data_ptr(),
        at_value if one_class is None else one_class.data_ptr(),
        *scratch.addresses, recipe.address_of_terms,
    )  # fmt: skip
    if (addresses[0] | addresses[1] | addresses[4]) & 15:
        return None
    for run, chosen, values in recipe.launches:
        run(*chosen(addresses), *values, stream=stream)
    return value, None, grad


def _keep(key: tuple[object, ...], trace: Trace | None) -> None:
    """Keep how to repeat the launches of a plan, if all of them can be repeated."""
    if trace is None:
        return
    launches: list[_Launch] = []
    for launched in trace.launched:
        if launched is None:
            return
        slots = [name if name in SLOTS else PLACEHOLDERS[name] for name in launched.pointers]
        chosen = itemgetter(*map(SLOTS.index, slots))
        launches.append((launched.run, chosen, launched.values))
    n_words, n_counters = (trace.buffers[name].numel() for name in ("workspace", "counters"))
    terms = trace.buffers.get("terms")
    address = 0 if terms is None else terms.data_ptr()
    if len(_recipes) >= _MOST_RECIPES:
        _recipes.clear()
    _recipes[key] = _Recipe(launches, n_words, n_counters, terms, address)


def _new_scratch(device: torch.device, n_words: int, n_counters: int) -> _Scratch:
    if len(_scratch) >= _MOST_SCRATCH:
        _scratch.clear()
    n_words += n_words % 2  # the pair weight's address: a multiple of 16
    n_counters = max(n_counters, 16)
    workspace = torch.empty(n_words + 1, dtype=torch.float64, device=device)
    counters = torch.zeros(n_counters, dtype=torch.int32, device=device)
    at = workspace.data_ptr()
    addresses = at, counters.data_ptr(), at + 8 * n_words
    return _Scratch(n_words, n_counters, addresses, (workspace, counters))
