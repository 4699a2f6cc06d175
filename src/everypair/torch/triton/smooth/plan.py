"""Compute a smooth surrogate on a GPU: one sort, sums of chunks and blocks, one walk over the rows.

A pair adds a polynomial in x = exp(-rate abs(d)) on either side of d = 0, with
d = s_neg + shift - s_pos, and x^k is the product of a factor of either row. So the sums over all
pairs of a row follow from running sums along the positions, see `state`.

    sort        by torch, of the positions s (positives) and s + shift (negatives)
    arrange     what is needed of each row, sorted
    chunk_sums  running sums at the end of each chunk, inside each block
    block_sums  running sums at the end of each block
    walk        every lane goes through its chunk in both directions; results are unsorted

For float32 scores, loss and gradient of blocks that span a small part of a temperature follow from
moments instead: see `narrow`.

**Error.** Each pair has the relative error of the fit that `surrogates` proves, at most 5e-8 for
float32 scores and 5e-14 for float64. For a surrogate that increases, all slopes have one sign, so
the loss and each entry of the gradient have no larger one. All sums are float64 and none of their
addends are negative. A running sum is the result of about CHUNK + CHUNKS + blocks / STEP steps with
a relative rounding error of 2^-52 each, and of factors exp(-k u) with errors of k u 2^-53, where
k u < 745: together less than 1e-12 at any offset and any spread.
"""

from __future__ import annotations

import torch
from torch import Tensor

from everypair.torch.triton.common.launch import Job, buffers, launch, on_device
from everypair.torch.triton.smooth.narrow import WORDS
from everypair.torch.triton.smooth.sums import arrange, block_sums, chunk_sums
from everypair.torch.triton.smooth.terms import fitted
from everypair.torch.triton.smooth.walk import walk

CHUNK = 64
"""Rows that a lane goes through one after the other."""
CHUNKS = 32
"""Lanes of a program: one warp, so that scans need no barriers."""
STEP = 1024
"""Blocks, or losses of programs, that are added up at once."""
WIDTH = 2.0**-8
"""Up to this span times the rate, a block is summed by moments; 0 if none is. See `narrow`."""
TILE = 256
"""Rows of such a block that are read at once."""


def by_powers(job: Job) -> None:
    """Compute a job with a smooth term; not replayed, because the sort allocates."""
    scores, n, tasks, device = job.scores, job.n, job.tasks, job.scores.device
    wide = scores.dtype is torch.float64
    has_vector = job.vector is not None
    requested = True, job.grad is not None, job.hess is not None or has_vector
    numbers, fits, n_powers, linear, at_0 = fitted(job.terms, wide, requested)
    if requested[2] or WIDTH == 0.0:
        at_0 = None
    ranked, order = _positions(job, numbers.shift).sort(dim=-1, stable=True)
    has_low = wide and numbers.shift != 0.0
    kinds = 1 + has_vector
    size = kinds * n_powers * (1 + linear) + 2 + kinds
    blocks = -(-n // (CHUNK * CHUNKS))
    padded = blocks * CHUNK * CHUNKS

    def rows(dtype: torch.dtype, is_needed: bool = True) -> Tensor:
        return torch.empty(tasks * padded if is_needed else 1, dtype=dtype, device=device)

    weight_type = torch.int8
    if job.weights is not None:
        weight_type = torch.promote_types(job.weights.dtype, torch.float32)
    n_partial = 3 if has_vector else 2 if job.hess is not None else 1
    chunk_words, block_words = (4 * size * tasks * blocks * lanes for lanes in (CHUNKS, 1))
    partial_words = n_partial * tasks * padded
    moment_words = WORDS.value * tasks * blocks
    tensors = buffers(
        job, chunk_words + block_words + partial_words + moment_words + tasks * blocks, tasks,
        terms=on_device((*numbers, *(at_0 or ())), device), ranked=ranked, order=order,
        position=rows(ranked.dtype if ranked.dtype.itemsize >= 4 else torch.float32),
        low=rows(torch.float64, has_low), signed=rows(weight_type),
        along=rows(torch.float64, has_vector), row=rows(torch.int32),
    )  # fmt: skip
    at = 0
    for name, words in (
        ("chunk_states", chunk_words), ("block_states", block_words), ("partial", partial_words),
        ("moments", moment_words), ("shares", tasks * blocks),
    ):  # fmt: skip
        tensors[name] = tensors["workspace"][at : at + words]
        at += words
    scalars = {"n": n, "blocks": blocks}
    constants = {
        **job.constants, "HAS_LOW": has_low, "FITS": fits, "K": n_powers, "LINEAR": int(linear),
        "KINDS": kinds, "SIZE": size, "CHUNK": CHUNK, "CHUNKS": CHUNKS, "STEP": STEP,
        "NARROW": 0.0 if at_0 is None else WIDTH, "TILE": min(TILE, CHUNK * CHUNKS),
    }  # fmt: skip
    lanes = max(1, CHUNKS // 32)  # warps with one lane for each thread
    launches = (
        (arrange, blocks, 4), (chunk_sums, blocks, lanes),
        (block_sums, 4 * (kinds * n_powers + 1), 4), (walk, blocks, lanes),
    )  # fmt: skip
    for kernel, programs, warps in launches:
        options = {"num_warps": warps, "enable_fp_fusion": True}
        launch(kernel, (programs, tasks), tensors, scalars, constants, **options)


def _positions(job: Job, shift: float) -> Tensor:
    """Return the positions of the rows, in float64 if they are not the scores themselves."""
    if shift == 0.0:
        return job.scores
    scores = job.scores.double()
    return torch.where(job.labels <= 0, scores + shift, scores)
