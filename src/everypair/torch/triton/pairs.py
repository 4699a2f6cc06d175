"""Every pair, one by one, on a GPU: for batches so small that nothing is faster.

A program takes some rows and meets all others in steps. With d the place of the negative minus that
of the positive, shifted for the first term, the terms that are active in a pair are added up as
coefficients of one polynomial in d before it is evaluated: where they cancel, they cancel exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from everypair.torch.triton.launch import (
    Trace,
    coefficients,
    launch,
    on_device,
    power_of_2,
    seats,
    words,
    zeros,
)

if TYPE_CHECKING:
    from everypair.torch.triton.launch import Job

__all__ = ["by_pairs"]


def by_pairs(job: Job) -> Trace:
    """Answer a question pair by pair."""
    scores, labels, weights, vector, terms, mean, one_class = job[:7]
    value, pair_weight, grad, hvp, hess = job[7:12]
    n = scores.shape[-1]
    tasks = scores.numel() // n
    rows = 8 if n * tasks <= 8 * seats(scores.device) else 16
    blocks = -(-n // rows)
    padded = max(power_of_2(blocks), 512)  # sizes that differ share a kernel
    shares, spare = words(tasks * padded, tasks, scores.device)
    arrivals = zeros(tasks, scores.device)
    launched = launch(
        all_pairs, (blocks, tasks),
        (scores, labels, scores if weights is None else weights.contiguous(),
         scores if vector is None else vector.contiguous(),
         on_device(coefficients(terms), scores.device),
         value if grad is None else grad, value if hvp is None else hvp,
         value if hess is None else hess, value,
         spare if pair_weight is None else pair_weight,
         value if one_class is None else one_class, shares, arrivals),
        (n,),
        (len(terms), mean, one_class is not None, weights is not None, grad is not None,
         vector is not None, hess is not None, job.missing, rows, 64, padded),
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return Trace(shares, arrivals, [launched])


@triton.jit
def all_pairs(
    scores, labels, weights, vector, terms, grad, hvp, hess, value, pair_weight, one_class,
    shares, arrivals, n, N_TERMS: tl.constexpr, MEAN: tl.constexpr, COUNTED: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr, WANT_GRAD: tl.constexpr, HAS_VECTOR: tl.constexpr,
    WANT_DIAGONAL: tl.constexpr, MISSING: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """Compute the loss of the batches of `scores`, (tasks, n), and its derivatives as asked.

    A term is five numbers: its shift, its coefficients in the first term's d, and its shift again,
    or infinity where it has no knot and counts everywhere.
    """
    task = tl.program_id(1).to(tl.int64)
    scores += task * n
    labels += task * n
    weights += task * n
    vector += task * n
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mine = i < n
    s_i = tl.load(scores + i, mask=mine, other=0.0).to(tl.float64)
    label = tl.load(labels + i, mask=mine, other=0)
    positive = label > 0
    sign = tl.where(positive, -1.0, 1.0).to(tl.float64)
    if HAS_VECTOR:
        z_i = tl.load(vector + i, mask=mine, other=0.0).to(tl.float64)
    values = tl.zeros((ROWS, STEP), tl.float64)
    slopes, curves, own_curves = values, values, values
    mass_pos, mass_neg = tl.zeros((STEP,), tl.float64), tl.zeros((STEP,), tl.float64)
    taint = tl.zeros((STEP,), tl.float64)
    shift0 = tl.load(terms)
    for start in range(0, n, STEP):
        j = start + tl.arange(0, STEP)
        there = j < n
        s_j = tl.load(scores + j, mask=there, other=0.0).to(tl.float64)
        other = tl.load(labels + j, mask=there, other=0)
        if HAS_WEIGHTS:
            w_j = tl.load(weights + j, mask=there, other=0.0).to(tl.float64)
        else:
            w_j = tl.where(there, 1.0, 0.0).to(tl.float64)
        if MISSING:
            w_j = tl.where(other == other, w_j, 0.0)
        mass_pos += tl.where(other > 0, w_j, 0.0)
        mass_neg += tl.where(other > 0, 0.0, w_j)
        taint += s_j * 0.0
        apart = sign[:, None] * (s_i[:, None] - s_j[None, :])
        w = tl.where(positive[:, None] != (other > 0)[None, :], w_j[None, :], 0.0)
        a0 = tl.zeros((ROWS, STEP), tl.float64)
        a1 = tl.zeros((ROWS, STEP), tl.float64)
        a2 = tl.zeros((ROWS, STEP), tl.float64)
        for k in tl.static_range(N_TERMS):
            term = terms + 5 * k
            active = apart + tl.load(term + 4) > 0.0
            a0 += tl.where(active, tl.load(term + 1), 0.0)
            a1 += tl.where(active, tl.load(term + 2), 0.0)
            a2 += tl.where(active, tl.load(term + 3), 0.0)
        d = apart + shift0
        values += w * (a0 + d * (a1 + d * a2))
        if WANT_GRAD:
            slopes += w * (a1 + 2.0 * d * a2)
        if HAS_VECTOR:
            z_j = tl.load(vector + j, mask=there, other=0.0).to(tl.float64)
            curves += 2.0 * w * a2 * (z_i[:, None] - z_j[None, :])
        if WANT_DIAGONAL:
            own_curves += 2.0 * w * a2
    pairs = tl.sum(mass_pos, 0) * tl.sum(mass_neg, 0)
    bad = tl.sum(taint, 0)
    scale = 1.0 / tl.where(pairs > 0.0, pairs, 1.0) if MEAN else tl.full((), 1.0, tl.float64)
    if HAS_WEIGHTS:
        own = tl.load(weights + i, mask=mine, other=0.0).to(tl.float64)
    else:
        own = tl.where(mine, 1.0, 0.0).to(tl.float64)
    if MISSING:
        own = tl.where(label == label, own, 0.0)
    if WANT_GRAD:
        found = sign * own * tl.sum(slopes, 1) * scale + bad
        tl.store(grad + task * n + i, found.to(grad.dtype.element_ty), mask=mine)
    if HAS_VECTOR:
        found = own * tl.sum(curves, 1) * scale + bad
        tl.store(hvp + task * n + i, found.to(hvp.dtype.element_ty), mask=mine)
    if WANT_DIAGONAL:
        found = own * tl.sum(own_curves, 1) * scale + bad
        tl.store(hess + task * n + i, found.to(hess.dtype.element_ty), mask=mine)
    # Each pair has one negative: its rows carry the loss. The program that comes last adds up.
    share = tl.sum(tl.where(positive, 0.0, own * tl.sum(values, 1)), 0)
    block = tl.program_id(0)
    blocks = tl.num_programs(0)
    shares += task * BLOCKS
    tl.store(shares + block, share)
    tl.debug_barrier()
    if tl.atomic_add(arrivals + task, 1, sem="acq_rel", scope="gpu") == blocks - 1:
        k = tl.arange(0, BLOCKS)
        total = tl.sum(tl.load(shares + k, mask=k < blocks, other=0.0), 0)
        tl.store(value + task, (total * scale + bad).to(value.dtype.element_ty))
        tl.store(pair_weight + task, pairs + bad)
        if COUNTED:
            tl.atomic_add(one_class, (pairs == 0.0).to(tl.int64))
        tl.store(arrivals + task, 0)  # for the next launch
