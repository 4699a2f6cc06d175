"""Compute ordered pairs on a GPU: one sort by score, then one level for each bit of the rank.

The mathematics is that of `everypair.inputs.ranked`: pairs of rows whose ranks differ first at a
bit are the binary pairs of that level, with the groups that the higher bits form. Rows of a group
stay sorted by score under a stable partition by the bit, so no level sorts.

    sort           by torch, by score and then by group
    level_sums     moments of both classes along the rows of each segment, inside blocks
    level_carry    moments from the start of a segment up to the end of each block
    level_look_up  each row bisects its segment and adds its pairs; partition for the next level

The host launches one level for each bit that the ranks may have. The device knows how many they
have, and programs of other levels end at once, so the host never waits. Two grades cost one level.

The moments are those of `sorted_rows` without low parts, so this plan takes what that one computes
without double-double numbers. The rest is computed by `everypair.arrays.levels`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from everypair.surrogates import KnotTerm, PairTerm, are_polynomials
from everypair.torch._compat import current_raw_stream as current_stream
from everypair.torch.triton.common.launch import launch, on_device
from everypair.torch.triton.common.workspace import MOMENTS
from everypair.torch.triton.levels import level_carry, level_look_up, level_sums
from everypair.torch.triton.sorted_rows import needs_double_double

BLOCK = 512
"""Rows that a program scans."""
STEP = 1024
"""Blocks that are scanned at once."""
ROWS = 256
"""Rows that a program looks up."""


def takes(scores: Tensor, terms: tuple[PairTerm, ...], vector: Tensor | None) -> bool:
    """Return whether `by_levels` computes these terms: one truncated polynomial, see above."""
    return are_polynomials(terms) and not needs_double_double(scores.dtype, terms, vector)


def by_levels(
    scores: Tensor, order: Tensor, ranks: Tensor, is_head: Tensor | None, winner: Tensor | None,
    loser: Tensor | None, vector: Tensor | None, terms: tuple[KnotTerm, ...], n_bits: int,
    *, mean: bool, grad: bool, hess: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Return value, pair weight, gradient, diagonal Hessian and Hessian times vector.

    Parameters
    ----------
    scores, vector : (n,) or (tasks, n)
    order, ranks : (..., n) int64
        The rows in the order of their groups and ranks, and their ranks inside the group.
    is_head : (..., n) bool or None
        Whether a row in that order is the first of its group; None if all rows are one group.
    winner, loser : (..., n) or None
        The weight of a row where it has the higher rank, and where it has the lower one.
    n_bits : int
        The number of bits of the highest rank, or more.
    mean, grad, hess : bool
        Whether to divide by the weight of all pairs, and what to compute.
    """
    n, device, dtype = scores.shape[-1], scores.device, torch.float32
    if scores.dtype is torch.float64:
        dtype = torch.float64
    x = scores.to(dtype)
    ranked, row = x.sort(dim=-1, stable=True)
    # 0, or NaN: a sort puts what is not finite at an end.
    bad = (ranked[..., 0] * 0.0 + ranked[..., -1] * 0.0).double()
    begin, end = torch.zeros_like(row), torch.full_like(row, n)
    if is_head is not None:
        number = is_head.cumsum(-1)
        begin = torch.searchsorted(number, number)
        end = torch.searchsorted(number, number, right=True)
        of_rows = torch.empty_like(number).scatter_(-1, order, number).gather(-1, row)
        row = row.gather(-1, of_rows.sort(dim=-1, stable=True).indices)
        ranked = x.gather(-1, row)
    rank = torch.empty_like(ranks).scatter_(-1, order, ranks).gather(-1, row)
    top = ranks.amax(-1, keepdim=True)
    heights = ((top >> torch.arange(n_bits, device=device)) > 0).sum(-1)

    tasks = heights.numel()
    blocks, programs = -(-n // BLOCK), -(-n // ROWS)
    columns = MOMENTS.value + (vector is not None)

    def both_halves(a: Tensor, dtype: torch.dtype) -> Tensor:
        halves = torch.empty((tasks, 2, n), dtype=dtype, device=device)
        halves[:, 0] = a.reshape(tasks, n)
        return halves

    def room(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def sums(is_requested: bool) -> Tensor:
        return torch.zeros((tasks, n if is_requested else 1), dtype=torch.float64, device=device)

    slopes, masses, curves = sums(grad), sums(hess), sums(vector is not None)
    shares = torch.zeros((tasks, 2, programs), dtype=torch.float64, device=device)
    tensors = {
        "ranked": both_halves(ranked, dtype), "rank": both_halves(rank, torch.int32),
        "row": both_halves(row, torch.int32), "begin": both_halves(begin, torch.int32),
        "end": both_halves(end, torch.int32), "heights": heights.to(torch.int32),
        "winner": shares if winner is None else winner.contiguous(),
        "loser": shares if loser is None else loser.contiguous(),
        "vector": shares if vector is None else vector.contiguous(),
        "prefix": room(tasks, 2, columns, n), "carry": room(tasks, 2, columns, blocks),
        "ones": room(tasks, n, dtype=torch.int32),
        "ones_carry": room(tasks, blocks, dtype=torch.int32),
        "terms": on_device(tuple(float(a) for a in terms[0]), device),
        "slopes": slopes, "masses": masses, "curves": curves, "shares": shares,
    }  # fmt: skip
    constants = {
        "HAS_WEIGHTS": winner is not None, "HAS_VECTOR": vector is not None, "WANT_GRAD": grad,
        "WANT_HESS": hess, "COLUMNS": columns, "BLOCK": BLOCK, "STEP": STEP, "ROWS": ROWS,
    }  # fmt: skip
    kernels = (level_sums, blocks, 4), (level_carry, 2, 8), (level_look_up, programs, 4)
    launches = [
        _Repeated(kernel, (width, tasks), tensors, constants, warps)
        for kernel, width, warps in kernels
    ]
    for bit in reversed(range(n_bits)):
        for repeated in launches:
            repeated.launch(n, bit)

    shape = scores.shape[:-1]
    loss, pairs = (part.reshape(shape) for part in shares.sum(-1).unbind(1))
    scale = torch.where(pairs > 0.0, 1.0 / pairs, 1.0) if mean else torch.ones_like(pairs)

    def finished(part: Tensor, is_requested: bool) -> Tensor | None:
        if not is_requested:
            return None
        return (part.reshape(scores.shape) * scale[..., None] + bad[..., None]).to(dtype)

    return (
        (loss * scale + bad).to(dtype), pairs + bad, finished(slopes, grad), finished(masses, hess),
        finished(curves, vector is not None),
    )  # fmt: skip


class _Repeated:
    """A kernel that is launched for one bit after the other with the same tensors."""

    def __init__(
        self, kernel: Any, grid: tuple[int, int], tensors: dict[str, Tensor],
        constants: dict[str, int], warps: int,
    ) -> None:  # fmt: skip
        self._launch = kernel, grid, tensors
        self._constants, self._warps = constants, warps
        self._call: tuple[Any, ...] | None = None

    def launch(self, n: int, bit: int) -> None:
        """Launch the kernel; after the first time without the look-up in `launch`."""
        if self._call is not None:
            run, addresses, constants, stream = self._call
            run(*addresses, n, bit, *constants, stream=stream)
            return
        scalars = {"n": n, "bit": bit}
        launched = launch(
            *self._launch, scalars, self._constants, num_warps=self._warps, enable_fp_fusion=False
        )
        if launched is not None:
            tensors = self._launch[2]
            addresses = [tensors[name].data_ptr() for name in launched.pointers]
            stream = current_stream(tensors["ranked"].device)
            self._call = launched.run, addresses, launched.values[2:], stream
