"""Compute losses with any terms on a GPU: one sort, prefix moments, one look-up for each row.

A pair is active in a truncated term where d = s_neg + shift - s_pos > 0. Each class looks at the
other along its own axis, y = s for negatives and y = -s for positives, on which

    place = y + shift        d = place - y of the partner

so the active partners are those below the place. Along y = -s the sorted rows are read from their
end. Moments of the partners (see `double_double`) are kept for every CHUNK rows along both axes. A
row finds by bisection how many rows lie below its place, moves the moments of whole chunks there,
and adds the remaining rows one by one. No addend is negative, so neither an offset of all scores
nor rows far away cause a loss of digits.

    sort           by torch, once for all terms
    chunk_moments  moments from the start of each block up to each chunk
    block_moments  moments of all blocks up to each block
    look_up        loss, gradient, diagonal of the Hessian and Hessian times vector, unsorted

Terms that may cancel, as those of the Huber hinge do, are added up in double-double numbers, each
at its own knot. So are terms without a knot, whose d has both signs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from everypair.surrogates import KnotTerm
from everypair.torch.triton.chunks import block_moments, chunk_moments, columns_of, rows_below
from everypair.torch.triton.common.double_double import (
    add, distance, from_double, load_moments, load_number, moments_at, mul, mul_double,
    store_number, sub, sum_all, to_double, two_sum,
)  # fmt: skip
from everypair.torch.triton.common.launch import Job, buffers, launch, on_device
from everypair.torch.triton.common.workspace import MOMENTS, MOMENTS_DD, load_term, sorted_words

CHUNK = 8
"""Rows of a chunk; a look-up adds up fewer than these one by one."""
CHUNKS = 256
"""Chunks of a block."""
STEP = 512
"""Blocks, or losses of programs, that are added up at once."""
ROWS = 256
"""Rows that a program looks up at once."""
DD_ROWS = 128
"""The same with double-double, where a thread has registers for one row only."""
PROGRAMS = 4096
"""Most programs that look up; the loss of each is stored and added up."""


def by_sort(job: Job) -> None:
    """Compute any job, after one sort; not replayed, because the sort allocates."""
    scores, n, tasks = job.scores, job.n, job.tasks
    dd = needs_double_double(scores.dtype, job.polynomials, job.vector)
    blocks = -(-n // (CHUNK * CHUNKS))
    rows = DD_ROWS if dd else ROWS
    programs = min(-(-n // rows), PROGRAMS)
    columns = (MOMENTS_DD if dd else MOMENTS).value + (job.vector is not None) * (1 + dd)
    size = sorted_words(tasks, columns, blocks, CHUNKS)
    ranked, order = scores.sort(dim=-1, stable=True)
    dtype = torch.int8
    if job.weights is not None:
        dtype = torch.promote_types(job.weights.dtype, torch.float32)
    signed = torch.empty(scores.shape, dtype=dtype, device=scores.device)
    along = signed if job.vector is None else torch.empty_like(job.vector)
    terms = on_device(tuple(float(x) for term in job.polynomials for x in term), scores.device)
    tensors = buffers(
        job, size + tasks * 2 * programs, tasks,
        terms=terms, ranked=ranked, order=order, signed=signed, along=along,
    )  # fmt: skip
    tensors["shares"] = tensors["workspace"][size:]
    constants = {
        **job.constants, "DD": dd, "COLUMNS": columns, "CHUNK": CHUNK, "CHUNKS": CHUNKS,
        "ROWS": rows, "STEP": STEP,
    }  # fmt: skip
    kernels = (chunk_moments, blocks, 4), (block_moments, 2, 8), (look_up, programs, 4)
    for kernel, width, warps in kernels:
        options = {"num_warps": warps, "enable_fp_fusion": False}
        launch(kernel, (width, tasks), tensors, {"n": n}, constants, **options)


def needs_double_double(
    dtype: torch.dtype, terms: tuple[KnotTerm, ...], vector: torch.Tensor | None
) -> bool:
    """Return whether sums in float64 could be less accurate than promised.

    A truncated term whose coefficients have one sign only adds numbers of that sign. Everything
    else may cancel: several terms; d of both signs, if a term has no knot; and, for float64 scores,
    coefficients of different signs and the product with a vector.
    """
    if len(terms) > 1:
        return True
    _, b0, b1, b2, truncated = terms[0]
    if not truncated:
        return True
    one_sign = min(b0, b1, b2) >= 0.0 or max(b0, b1, b2) <= 0.0
    return dtype is torch.float64 and (vector is not None or not one_sign)


@triton.jit
def _sum_of_shares(shares, programs, DD: tl.constexpr, STEP: tl.constexpr):
    """Return the sum of the losses of all programs."""
    sums = from_double(tl.zeros((STEP,), tl.float64))
    for start in range(0, programs, STEP):
        k = start + tl.arange(0, STEP)
        sums = add(sums, load_number(shares + k, programs, k < programs, DD), DD)
    return to_double(sum_all(sums, DD))


@triton.jit
def look_up(
    ranked, order, signed, along, vector, workspace, shares, terms, grad, hess, hvp, value,
    pair_weight, one_class, counters, n, N_TERMS: tl.constexpr, MEAN: tl.constexpr,
    COUNTED: tl.constexpr, WANT_GRAD: tl.constexpr, HAS_VECTOR: tl.constexpr,
    WANT_HESS: tl.constexpr, DD: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Compute the loss, and the derivatives that are asked for, of each row.

    Programs: (at most PROGRAMS, tasks). See the package for other arguments.

    ranked, order, signed, along, COLUMNS, CHUNK, CHUNKS  as in `chunk_moments`, read
    vector      its first entry is read if HAS_VECTOR
    workspace   read: the moments of chunks and blocks
    shares      (tasks, 2, programs) float64, written and read: the loss of each program
    terms       the `KnotTerm`s themselves; `knot` is 1 if truncated
    ROWS, STEP  rows that a program looks up at once; losses that are added up at once
    """
    # 1. The weight of all pairs, from the moments of all blocks; 0 or NaN from the first and last
    #    score, because a sort puts what is not finite at an end.
    task = tl.program_id(1).to(tl.int64)
    ranked += task * n
    order += task * n
    signed += task * n
    along += task * n
    grad += task * n
    hvp += task * n
    hess += task * n
    BLOCK: tl.constexpr = CHUNK * CHUNKS
    blocks = (n + BLOCK - 1) // BLOCK
    Z: tl.constexpr = MOMENTS_DD if DD else MOMENTS
    stride = blocks * CHUNKS
    chunks_of, blocks_of = columns_of(workspace, task, blocks, COLUMNS, CHUNKS)
    ends = blocks_of + blocks - 1
    w_pos, _, _, _ = load_moments(ends, blocks, blocks > 0, DD)
    w_neg, _, _, _ = load_moments(ends + COLUMNS * blocks, blocks, blocks > 0, DD)
    pairs = to_double(w_pos) * to_double(w_neg)
    bad = tl.load(ranked).to(tl.float64) * 0.0 + tl.load(ranked + n - 1).to(tl.float64) * 0.0
    scale = 1.0 / tl.where(pairs > 0.0, pairs, 1.0) if MEAN else tl.full((), 1.0, tl.float64)
    zero = tl.zeros((ROWS,), tl.float64)
    first = tl.zeros((), tl.float64)
    if HAS_VECTOR:
        first += tl.load(vector + task * n).to(tl.float64)
    losses = from_double(zero)
    programs = tl.num_programs(0)
    for start in range(tl.program_id(0) * ROWS, n, programs * ROWS):
        # 2. Load ROWS rows of this program.
        i = start + tl.arange(0, ROWS)
        mine = i < n
        own = tl.load(signed + i, mask=mine, other=0).to(tl.float64)
        sign = tl.where(own > 0.0, -1.0, 1.0).to(tl.float64)
        side = tl.where(own > 0.0, 1, 0)
        own = tl.abs(own)
        y = sign * tl.load(ranked + i, mask=mine, other=0.0).to(tl.float64)
        z = from_double(zero)
        if HAS_VECTOR:
            z_i = tl.load(along + i, mask=mine, other=0.0).to(tl.float64)
            z = distance(from_double(z_i), first, DD)
        values, slopes = from_double(zero), from_double(zero)
        curves, masses = from_double(zero), from_double(zero)
        for k in range(N_TERMS):
            # 3. For each term, find the number of rows below the place of each row.
            shift, b0, b1, b2, truncated = load_term(terms, k)
            place = two_sum(y, zero + shift)
            below = n + tl.zeros((ROWS,), tl.int32)
            if truncated > 0.0:
                below = rows_below(ranked, n, sign, place)
            # Along y = -s, the rows that fill up the last block come first.
            below += side * (blocks * BLOCK - n)
            block = below // BLOCK
            chunk = below // CHUNK
            # 4. Moments of the rows below: of whole blocks, of whole chunks, of single rows.
            at = blocks_of + side * COLUMNS * blocks + block - 1
            w, m, q = moments_at(load_moments(at, blocks, block > 0, DD), place, DD)
            at_chunk = chunks_of + side * COLUMNS * stride + chunk - 1
            local = moments_at(load_moments(at_chunk, stride, chunk % CHUNKS > 0, DD), place, DD)
            w, m = add(w, local[0], DD), add(m, local[1], DD)
            q = add(q, local[2], DD)
            zs = from_double(zero)
            if HAS_VECTOR:
                zs = add(
                    load_number(at + Z * blocks, blocks, block > 0, DD),
                    load_number(at_chunk + Z * stride, stride, chunk % CHUNKS > 0, DD),
                    DD,
                )
            for j in range(CHUNK - 1):
                nth = chunk * CHUNK + j
                row = tl.where(side > 0, blocks * BLOCK - 1 - nth, nth)
                there = (nth < below) & (row < n)
                w_j = sign * tl.load(signed + row, mask=there, other=0).to(tl.float64)
                w_j = tl.maximum(w_j, 0.0)
                y_j = sign * tl.load(ranked + row, mask=there, other=0.0).to(tl.float64)
                d = distance(place, y_j, DD)
                d_w = mul_double(d, w_j, DD)
                w, m = add(w, from_double(w_j), DD), add(m, d_w, DD)
                q = add(q, mul(d_w, d, DD), DD)
                if HAS_VECTOR:
                    z_j = tl.load(along + row, mask=there, other=0.0).to(tl.float64)
                    z_j = mul_double(distance(from_double(z_j), first, DD), w_j, DD)
                    zs = add(zs, z_j, DD)
            # 5. Add the term. Without b2 the second moment is not needed and may have overflowed.
            q = tl.where(b2 == 0.0, 0.0, q[0]), tl.where(b2 == 0.0, 0.0, q[1])
            found = add(mul_double(w, b0, DD), mul_double(m, b1, DD), DD)
            values = add(values, add(found, mul_double(q, b2, DD), DD), DD)
            if WANT_GRAD:
                slope = add(mul_double(w, b1, DD), mul_double(m, 2.0 * b2, DD), DD)
                slopes = add(slopes, slope, DD)
            if HAS_VECTOR:
                curve = sub(mul(z, w, DD), zs, DD)
                curves = add(curves, mul_double(curve, 2.0 * b2, DD), DD)
            if WANT_HESS:
                masses = add(masses, mul_double(w, 2.0 * b2, DD), DD)
        # 6. Store the derivatives where the rows came from.
        to = tl.load(order + i, mask=mine, other=0)
        if WANT_GRAD:
            answer = sign * own * to_double(slopes) * scale + bad
            tl.store(grad + to, answer.to(grad.dtype.element_ty), mask=mine)
        if HAS_VECTOR:
            answer = own * to_double(curves) * scale + bad
            tl.store(hvp + to, answer.to(hvp.dtype.element_ty), mask=mine)
        if WANT_HESS:
            answer = own * to_double(masses) * scale + bad
            tl.store(hess + to, answer.to(hess.dtype.element_ty), mask=mine)
        # 7. Add up the loss: each pair has one negative, whose row adds it.
        losses = add(losses, mul_double(values, tl.where(sign > 0.0, own, 0.0), DD), DD)
    # 8. The last program adds up the losses, and sets the counter to 0 again.
    shares += task * 2 * programs
    store_number(shares + tl.program_id(0), programs, sum_all(losses, DD), None, DD)
    tl.debug_barrier()
    if tl.atomic_add(counters + task, 1, sem="acq_rel", scope="gpu") == programs - 1:
        loss = _sum_of_shares(shares, programs, DD, STEP) * scale + bad
        tl.store(value + task, loss.to(value.dtype.element_ty))
        tl.store(pair_weight + task, pairs + bad)
        if COUNTED:
            tl.atomic_add(one_class, (pairs == 0.0).to(tl.int64))
        tl.store(counters + task, 0)
