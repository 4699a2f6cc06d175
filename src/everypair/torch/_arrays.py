"""The pair sums in torch operations, on any device.

No operation reads a value back, so an accelerator never waits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from everypair.arrays import levels, pair_sums, terms
from everypair.arrays.double_double import Arrays, Number
from everypair.arrays.rows import PairSums
from everypair.inputs import hardest, survival

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from everypair.surrogates import PairTerm

__all__ = ["evaluate", "evaluate_ranked", "hardest_weights"]

_BYTES = (torch.bool, torch.int8, torch.uint8)  # at most 256 different targets


def evaluate(
    scores: Tensor,
    positive: Tensor,
    weights: Tensor | None,
    groups: Tensor | None,
    vector: Tensor | None,
    pair_terms: tuple[PairTerm, ...],
    *,
    mean: bool,
    grad: bool,
    hess: bool,
) -> PairSums:
    """Return value, pair weight, gradient, diagonal Hessian and Hessian times vector.

    The last dimension of `scores` holds the rows; the others hold batches that have no pairs in
    common. `positive`, `weights`, `groups` and `vector` have the same shape. Results are in the
    type that sums are computed in. The value is zero where only the Hessian times vector is asked.
    """
    dtype = _work_dtype(scores.device)
    compensated = dtype is torch.float32 or pair_sums.needs_low_parts(
        pair_terms,
        wide=scores.dtype is torch.float64,
        weighted=weights is not None,
        grouped=groups is not None,
    )
    x, w, z = (None if a is None else a.to(dtype) for a in (scores, weights, vector))
    return pair_sums.evaluate(
        TorchArrays(x, compensated=compensated), x, positive, w, groups, z,
        terms.by_kind(pair_terms, wide=scores.dtype is torch.float64),
        mean=mean, grad=grad, hess=hess,
    )  # fmt: skip


def evaluate_ranked(
    scores: Tensor,
    targets: Tensor,
    weights: Tensor | None,
    groups: Tensor | None,
    vector: Tensor | None,
    pair_terms: tuple[PairTerm, ...],
    pairs: str,
    *,
    mean: bool,
    grad: bool,
    hess: bool,
    plan: Callable[..., Any] | None = None,
) -> PairSums:
    """Do the same for all pairs with different targets.

    `pairs` is "ordered"; or "survival" or "uno", and targets are times, negative where censored.
    `plan` computes the pairs of ranked rows: `everypair.torch.triton.ordered.by_levels`, or None
    for torch operations.
    """
    x = scores.to(_work_dtype(scores.device))
    w, z = (None if a is None else a.to(x.dtype) for a in (weights, vector))
    xp = TorchArrays(x, compensated=True)
    keys, winner = [targets], w
    if pairs != "ordered":
        times, events = targets.abs(), ~targets.signbit()
        w = torch.ones_like(x) if w is None else w
        factor = survival.censoring_weights(xp, times, events, w) if pairs == "uno" else events
        winner, keys = w * factor, [xp.as_uint8(events), -times]
    n_bits = max(1, (x.shape[-1] - 1).bit_length())
    if targets.dtype in _BYTES:
        n_bits = min(n_bits, 8)
    rows = levels.ranks_of(xp, keys, groups)
    if plan is not None:
        is_head = None if groups is None else rows.is_head
        return PairSums(
            *plan(
                scores, rows.order, rows.ranks, is_head, winner, w, vector, pair_terms, n_bits,
                mean=mean, grad=grad, hess=hess,
            )
        )  # fmt: skip
    return levels.evaluate(
        xp, x, rows, winner, w, z,
        terms.by_kind(pair_terms, wide=scores.dtype is torch.float64),
        n_bits, mean=mean, grad=grad, hess=hess,
    )  # fmt: skip


def hardest_weights(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    groups: Tensor | None,
    max_fpr: float,
    min_tpr: float,
) -> Tensor:
    """Return the weights of the rows that a partial AUC keeps, of the shape of scores (..., n)."""
    x, shape = scores.detach().to(_work_dtype(scores.device)), scores.shape
    w = torch.ones_like(x) if weights is None else weights.to(x.dtype).expand(shape)
    if labels.is_floating_point():
        w = w.masked_fill(labels.isnan().expand(shape), 0.0)
    result: Tensor = hardest.hardest_weights(
        TorchArrays(x, compensated=True), x, (labels > 0).expand(shape), w,
        None if groups is None else groups.expand(shape), max_fpr, min_tpr,
    )  # fmt: skip
    return result


def _work_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64


def _place(tensor: Tensor) -> tuple[torch.dtype, torch.device]:
    return tensor.dtype, tensor.device


# Copying numbers to a device waits for it, so the copies are kept.
@lru_cache(maxsize=256)
def _constants(
    values: tuple[float, ...], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Number:
    exact = torch.tensor(values, dtype=torch.float64).reshape(shape)
    high = exact.to(dtype)
    low = (exact - high.double()).to(dtype).to(device) if dtype is torch.float32 else None
    return Number(high.to(device), low)


class TorchArrays(Arrays):
    """The operations of torch for tensors like `scores`."""

    where = staticmethod(torch.where)
    isfinite = staticmethod(torch.isfinite)
    zeros_like = staticmethod(torch.zeros_like)
    concatenate = staticmethod(torch.cat)
    stack = staticmethod(torch.stack)
    broadcast = staticmethod(torch.broadcast_to)
    roll = staticmethod(lambda a, by: a.roll(by, -1))
    flip = staticmethod(lambda a: a.flip(-1))
    sum = staticmethod(lambda a: a.sum(-1, keepdim=True))
    max = staticmethod(lambda a: a.amax(-1, keepdim=True))
    as_uint8 = staticmethod(lambda a: a.to(torch.uint8))
    row_numbers = staticmethod(lambda a: torch.arange(a.shape[-1], device=a.device))
    gather = staticmethod(lambda a, index: a.gather(-1, index.expand(a.shape)))
    scatter = staticmethod(lambda a, index: torch.empty_like(a).scatter(-1, index, a))
    exponential = staticmethod(torch.exp)
    floor = staticmethod(torch.floor)
    running_count = staticmethod(lambda a: a.cumsum(-1))
    running_product = staticmethod(lambda a: a.cumprod(-1))
    group_max = staticmethod(
        lambda a, start: (
            torch.full_like(a, -torch.inf).scatter_reduce(-1, start, a, "amax").gather(-1, start)
        )
    )

    def __init__(self, scores: Any, *, compensated: bool) -> None:
        super().__init__(compensated=compensated)
        self._scores = scores
        info = torch.finfo(scores.dtype)
        self.float_range = (info.tiny, info.max)
        self._is_single = scores.dtype is torch.float32
        self.mantissa_bits = 23 if self._is_single else 52

    def column(self, factors: Sequence[float]) -> Number:
        """See `Arrays`."""

        # Filling a tensor on its device does not wait for the device; copying a list there would.
        def of_terms(values: list[float]) -> Tensor:
            scalars = [self._scores.new_full((), value) for value in values]
            return torch.stack(scalars).reshape(-1, *[1] * self._scores.dim())

        high = [float(np.float32(a)) if self._is_single else a for a in factors]
        low = [a - b for a, b in zip(factors, high, strict=True)]
        return Number(of_terms(high), of_terms(low) if self._is_single else None)

    def constants(self, a: NDArray[np.float64]) -> Number:
        """See `Arrays`."""
        a = np.asarray(a)
        return _constants(tuple(a.reshape(-1).tolist()), a.shape, *_place(self._scores))

    def keep_bits(self, a: Tensor, dropped: int) -> Tensor:
        """See `Arrays`."""
        bits = a.view(torch.int32 if self._is_single else torch.int64)
        return (bits & -(1 << dropped)).view(a.dtype)

    @staticmethod
    def blocks(a: Tensor, length: int) -> Tensor:
        """See `Arrays`."""
        padded = torch.nn.functional.pad(a, (0, -a.shape[-1] % length))
        return padded.reshape(*a.shape[:-1], -1, length).movedim(-1, 0)

    @staticmethod
    def order(keys: Sequence[Tensor]) -> Tensor:
        """See `Arrays`."""
        order = keys[0].sort(dim=-1, stable=True).indices
        for key in keys[1:]:
            order = order.gather(-1, key.gather(-1, order).sort(dim=-1, stable=True).indices)
        return order

    @staticmethod
    def bounds(groups: Tensor) -> tuple[Tensor, Tensor]:
        """See `Arrays`."""
        groups = groups.contiguous()
        stop = torch.searchsorted(groups, groups, right=True) - 1
        return torch.searchsorted(groups, groups), stop

    @staticmethod
    def cumsum(a: Tensor) -> Tensor:
        """See `Arrays`."""
        if not (a.is_cuda and torch.are_deterministic_algorithms_enabled()):
            return a.cumsum(-1)
        # torch's own operation raises for CUDA tensors where results must be deterministic.
        reach = 1
        while reach < a.shape[-1]:
            a = torch.cat((a[..., :reach], a[..., reach:] + a[..., :-reach]), -1)
            reach *= 2
        return a
