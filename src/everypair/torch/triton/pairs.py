"""Evaluate every pair on a GPU: the fastest plan for small batches.

A program takes a few rows and compares them with all others. Let d be the score of the negative
minus that of the positive, plus the shift of the first term. The coefficients of all terms that are
active in a pair are added up before the polynomial in d is evaluated, so terms that cancel do so
exactly.

A pair is active in a term if s_neg + shift > s_pos for the real numbers that the floats are. Let
the rounded sum of s_neg and shift be the float64 t, and e its exact rounding error. Rounding does
not change the order of a sum and a float64, so the pair is active where t > s_pos, and where
t = s_pos and e > 0. Where value, slope and curvature of all terms vanish at d = 0 or are not asked
for, the rounded d decides.
"""

from __future__ import annotations

import triton
import triton.language as tl

from everypair.torch.triton.common.double_double import two_sum
from everypair.torch.triton.common.launch import (
    Job, Trace, buffers, coefficients, launch, n_multiprocessors, on_device, power_of_2,
)  # fmt: skip
from everypair.torch.triton.common.workspace import load_term


def by_pairs(job: Job) -> Trace:
    """Compute any job pair by pair."""
    n, tasks, device = job.n, job.tasks, job.scores.device
    rows = 8 if n * tasks <= 8 * n_multiprocessors(device) else 16
    blocks = -(-n // rows)
    padded = max(power_of_2(blocks), 512)  # batches of different sizes share a compiled kernel
    terms = on_device(coefficients(job.terms), device)
    tensors = buffers(job, tasks * padded, tasks, terms=terms)
    curved = job.hess is not None or job.vector is not None
    exact = any(truncated and (curved or b0 or b1) for _, b0, b1, _, truncated in job.polynomials)
    constants = {**job.constants, "ROWS": rows, "STEP": 64, "BLOCKS": padded, "EXACT": exact}
    launched = launch(
        all_pairs, (blocks, tasks), tensors, {"n": n}, constants,
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return Trace(tensors, [launched])


@triton.jit
def _is_below(s_pos, s_neg, shift):
    """Return whether s_pos < s_neg + shift, exactly."""
    t, error = two_sum(s_neg, shift)
    return (s_pos < t) | ((s_pos == t) & (error > 0.0))


@triton.jit
def all_pairs(
    scores, labels, weights, vector, terms, grad, hess, hvp, value, pair_weight, one_class,
    workspace, counters, n, N_TERMS: tl.constexpr, MEAN: tl.constexpr, COUNTED: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr, WANT_GRAD: tl.constexpr, HAS_VECTOR: tl.constexpr,
    WANT_HESS: tl.constexpr, MISSING: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
    BLOCKS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Compute the loss of each task and its derivatives as asked.

    Programs: (ceil(n / ROWS), tasks). See the package for other arguments.

    terms       a term is active where s_neg - s_pos + knot > 0
    workspace   (tasks, BLOCKS) float64, written and read: the loss of each program
    ROWS, STEP  rows of a program; rows that these are compared with at once
    BLOCKS      a power of 2, at least the number of programs of a task
    EXACT       decide exactly which pairs are active
    """
    # 1. Load the rows of this program.
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
    nonfinite = tl.zeros((STEP,), tl.float64)
    # 2. Compare them with all rows. `nonfinite` is 0, or NaN if a score is not finite.
    shift, _, _, _, _ = load_term(terms, 0)
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
        nonfinite += s_j * 0.0
        gap = sign[:, None] * (s_i[:, None] - s_j[None, :])
        w = tl.where(positive[:, None] != (other > 0)[None, :], w_j[None, :], 0.0)
        a0 = tl.zeros((ROWS, STEP), tl.float64)
        a1 = tl.zeros((ROWS, STEP), tl.float64)
        a2 = tl.zeros((ROWS, STEP), tl.float64)
        for k in tl.static_range(N_TERMS):
            _, b0, b1, b2, knot = load_term(terms, k)
            if EXACT:
                active = tl.where(
                    positive[:, None],
                    _is_below(s_i[:, None], s_j[None, :], knot),
                    _is_below(s_j[None, :], s_i[:, None], knot),
                )
            else:
                active = gap + knot > 0.0
            a0 += tl.where(active, b0, 0.0)
            a1 += tl.where(active, b1, 0.0)
            a2 += tl.where(active, b2, 0.0)
        d = gap + shift
        values += w * (a0 + d * (a1 + d * a2))
        if WANT_GRAD:
            slopes += w * (a1 + 2.0 * d * a2)
        if HAS_VECTOR:
            z_j = tl.load(vector + j, mask=there, other=0.0).to(tl.float64)
            curves += 2.0 * w * a2 * (z_i[:, None] - z_j[None, :])
        if WANT_HESS:
            own_curves += 2.0 * w * a2
    # 3. Store the derivatives of these rows.
    pairs = tl.sum(mass_pos, 0) * tl.sum(mass_neg, 0)
    bad = tl.sum(nonfinite, 0)
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
    if WANT_HESS:
        found = own * tl.sum(own_curves, 1) * scale + bad
        tl.store(hess + task * n + i, found.to(hess.dtype.element_ty), mask=mine)
    # 4. Store the loss of these rows: each pair has one negative, whose program adds it.
    share = tl.sum(tl.where(positive, 0.0, own * tl.sum(values, 1)), 0)
    block = tl.program_id(0)
    blocks = tl.num_programs(0)
    workspace += task * BLOCKS
    tl.store(workspace + block, share)
    tl.debug_barrier()
    # 5. The last program of a task adds up the losses, and sets the counter to 0 again.
    if tl.atomic_add(counters + task, 1, sem="acq_rel", scope="gpu") == blocks - 1:
        k = tl.arange(0, BLOCKS)
        total = tl.sum(tl.load(workspace + k, mask=k < blocks, other=0.0), 0)
        tl.store(value + task, (total * scale + bad).to(value.dtype.element_ty))
        tl.store(pair_weight + task, pairs + bad)
        if COUNTED:
            tl.atomic_add(one_class, (pairs == 0.0).to(tl.int64))
        tl.store(counters + task, 0)
