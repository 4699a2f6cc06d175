"""Any terms on a GPU: all rows sorted once, moments of each class along them, one look-up a row.

A pair of a positive and a negative counts in a term where d = s_neg + shift - s_pos > 0. Each class
looks at the other along an axis of its own, y = s for negatives and y = -s for positives, on which

    place = y + shift        d = place - y of the partner

and all partners below the place count: for the mirrored class the axis runs through the sorted rows
from their end. Moments of the partners (see `double_double`) are kept for every CHUNK of rows
along either axis; a row finds by bisection how many rows lie below its place, moves the moments of
whole chunks there, and adds the last few rows one by one. No addend is negative, so an offset of
all scores has vanished and neighbours far away round nothing off.

    sort     by the library, once for all terms
    sums     per block of chunks: moments of the rows of the block up to each chunk
    carry    moments of all blocks before each block
    look up  loss, gradient, Hessian times vector and diagonal, in the order the rows came in

Terms that may grow against each other, as those of the Huber hinge do, are added up in numbers of
two doubles, each of them at its own knot. So is what counts on both sides of a place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from everypair.torch.triton.chunks import carry, columns_of, sums
from everypair.torch.triton.double_double import (
    apart,
    loaded,
    loaded_number,
    minus,
    number,
    one,
    plus,
    scaled,
    seen,
    store_number,
    times,
    total,
    two_sum,
)
from everypair.torch.triton.launch import launch, on_device, words, zeros

if TYPE_CHECKING:
    from everypair.torch.triton.launch import Job

__all__ = ["by_sort"]

CHUNK = 8
"""Rows between moments that are kept; a look-up adds up fewer than these."""
CHUNKS = 256
"""Chunks in a block."""
STEP = 512
"""Blocks that are carried over at once."""
ROWS = 256
"""Rows that a program looks up at once."""
PAIRED_ROWS = 128
"""The same where numbers of two doubles leave a thread no registers for more than one row."""
PROGRAMS = 4096
"""Programs that look up, at most; each of them leaves a share of the loss to be added up."""


def by_sort(job: Job) -> None:
    """Answer any question about scores without groups, after one sort."""
    scores, labels, weights, vector, terms, mean, one_class = job[:7]
    value, pair_weight, grad, hvp, hess = job[7:12]
    n = scores.shape[-1]
    tasks = scores.numel() // n
    device = scores.device
    paired = _needs_low_parts(job)
    blocks = -(-n // (CHUNK * CHUNKS))
    rows = PAIRED_ROWS if paired else ROWS
    programs = min(-(-n // rows), PROGRAMS)
    columns = (7 if paired else 4) + (vector is not None) * (1 + paired)
    size = tasks * 2 * columns * blocks * (CHUNKS + 1)
    ranked, order = scores.sort(dim=-1, stable=True)
    room, spare = words(size + tasks * 2 * programs, tasks, device)
    # Its sign tells the class of a row: a row without weight has no pair to be on a side of.
    dtype = torch.int8 if weights is None else torch.promote_types(weights.dtype, torch.float32)
    signed = torch.empty(scores.shape, dtype=dtype, device=device)
    numbers = tuple(float(x) for term in terms for x in term)
    given = vector is not None
    if vector is None:
        vector = along = signed
    else:
        vector = vector.contiguous()
        along = torch.empty_like(vector)
    launch(
        sums, (blocks, tasks),
        (ranked, order, labels, signed if weights is None else weights.contiguous(), vector,
         signed, along, room),
        (n,), (weights is not None, given, paired, columns, CHUNK, CHUNKS),
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    launch(
        carry, (2, tasks), (room,), (n,), (given, paired, columns, CHUNK, CHUNKS, STEP),
        num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    launch(
        look_up, (programs, tasks),
        (ranked, order, signed, along, vector, room, room[size:], on_device(numbers, device),
         value if grad is None else grad, value if hvp is None else hvp,
         value if hess is None else hess, value,
         spare if pair_weight is None else pair_weight, value if one_class is None else one_class,
         zeros(tasks, device)),
        (n,),
        (len(terms), mean, one_class is not None, grad is not None, given, hess is not None,
         paired, columns, CHUNK, CHUNKS, rows, STEP),
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def _needs_low_parts(job: Job) -> bool:
    """Return whether sums in double precision could lose digits that are promised.

    A truncated term whose coefficients have one sign adds up nothing but what has that sign. All
    else may cancel: terms against each other, distances to both sides where a term has no knot; and
    where scores have the digits of a double, the parts of a term, and of a product with a vector.
    """
    if len(job.terms) > 1:
        return True
    _, b0, b1, b2, truncated = job.terms[0]
    if not truncated:
        return True
    one_sign = min(b0, b1, b2) >= 0.0 or max(b0, b1, b2) <= 0.0
    return job.scores.dtype is torch.float64 and (job.vector is not None or not one_sign)


@triton.jit
def _last_below(place, dtype: tl.constexpr):
    """Return the largest number of a type that is less than a place."""
    at = place[0].to(dtype)
    back = at.to(tl.float64)
    if dtype == tl.float64:
        bits = at.to(tl.int64, bitcast=True)
        least = -5e-324
    else:
        bits = at.to(tl.int32, bitcast=True)
        least = -1.401298464324817e-45
    # Of neighbours of one sign, the integers that their bits spell are neighbours, too.
    before = tl.where(at > 0.0, bits - 1, bits + 1).to(dtype, bitcast=True)
    before = tl.where(at == 0.0, least, before)
    return tl.where((back < place[0]) | ((back == place[0]) & (place[1] > 0.0)), at, before)


@triton.jit
def _rows_below(ranked, n, sign, place):
    """Return how many rows lie below a place along its axis, by bisection."""
    if ranked.dtype.element_ty == tl.float64:
        last = _last_below(place, tl.float64)
    else:
        last = _last_below(place, tl.float32)
    towards = sign.to(last.dtype)
    found = tl.full(sign.shape, 0, tl.int32)
    length = n + tl.zeros((), tl.int32)
    while length > 0:
        half = (length + 1) // 2
        nth = found + half - 1
        y = towards * tl.load(ranked + tl.where(sign > 0.0, nth, n - 1 - nth)).to(last.dtype)
        found = tl.where(y <= last, found + half, found)
        length -= half
    return found


@triton.jit
def _sum_of_shares(shares, programs, PAIRED: tl.constexpr, STEP: tl.constexpr):
    sums = number(tl.zeros((STEP,), tl.float64))
    for start in range(0, programs, STEP):
        k = start + tl.arange(0, STEP)
        sums = plus(sums, loaded_number(shares + k, programs, k < programs, PAIRED), PAIRED)
    return one(total(sums, PAIRED))


@triton.jit
def look_up(
    ranked, order, signed, along, vector, room, shares, terms, grad, hvp, hess, value,
    pair_weight, one_class, arrivals, n, N_TERMS: tl.constexpr, MEAN: tl.constexpr,
    COUNTED: tl.constexpr, WANT_GRAD: tl.constexpr, HAS_VECTOR: tl.constexpr,
    WANT_DIAGONAL: tl.constexpr, PAIRED: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Compute what is asked for some rows, and the loss. A term is the five numbers it is."""
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
    Z: tl.constexpr = 7 if PAIRED else 4
    stride = blocks * CHUNKS
    chunks_of, blocks_of = columns_of(room, task, blocks, COLUMNS, CHUNKS)
    ends = blocks_of + blocks - 1
    w_pos, _, _, _ = loaded(ends, blocks, blocks > 0, PAIRED)
    w_neg, _, _, _ = loaded(ends + COLUMNS * blocks, blocks, blocks > 0, PAIRED)
    pairs = one(w_pos) * one(w_neg)
    # What is not finite has been sorted to an end.
    bad = tl.load(ranked).to(tl.float64) * 0.0 + tl.load(ranked + n - 1).to(tl.float64) * 0.0
    scale = 1.0 / tl.where(pairs > 0.0, pairs, 1.0) if MEAN else tl.full((), 1.0, tl.float64)
    zero = tl.zeros((ROWS,), tl.float64)
    first = tl.zeros((), tl.float64)
    if HAS_VECTOR:
        first += tl.load(vector + task * n).to(tl.float64)
    losses = number(zero)
    programs = tl.num_programs(0)
    for start in range(tl.program_id(0) * ROWS, n, programs * ROWS):
        i = start + tl.arange(0, ROWS)
        mine = i < n
        own = tl.load(signed + i, mask=mine, other=0).to(tl.float64)
        sign = tl.where(own > 0.0, -1.0, 1.0).to(tl.float64)
        side = tl.where(own > 0.0, 1, 0)
        own = tl.abs(own)
        y = sign * tl.load(ranked + i, mask=mine, other=0.0).to(tl.float64)
        z = number(zero)
        if HAS_VECTOR:
            z_i = tl.load(along + i, mask=mine, other=0.0).to(tl.float64)
            z = apart(number(z_i), first, PAIRED)
        values, slopes, curves, masses = number(zero), number(zero), number(zero), number(zero)
        for k in range(N_TERMS):
            term = terms + 5 * k
            b0, b1, b2 = tl.load(term + 1), tl.load(term + 2), tl.load(term + 3)
            place = two_sum(y, zero + tl.load(term))
            below = n + tl.zeros((ROWS,), tl.int32)
            if tl.load(term + 4) > 0.0:
                below = _rows_below(ranked, n, sign, place)
            # The last block is filled up, with what lies below all rows on the mirrored axis.
            below += side * (blocks * BLOCK - n)
            block = below // BLOCK
            chunk = below // CHUNK
            at = blocks_of + side * COLUMNS * blocks + block - 1
            w, m, q = seen(loaded(at, blocks, block > 0, PAIRED), place, PAIRED)
            at_chunk = chunks_of + side * COLUMNS * stride + chunk - 1
            local = seen(loaded(at_chunk, stride, chunk % CHUNKS > 0, PAIRED), place, PAIRED)
            w, m = plus(w, local[0], PAIRED), plus(m, local[1], PAIRED)
            q = plus(q, local[2], PAIRED)
            zs = number(zero)
            if HAS_VECTOR:
                zs = plus(
                    loaded_number(at + Z * blocks, blocks, block > 0, PAIRED),
                    loaded_number(at_chunk + Z * stride, stride, chunk % CHUNKS > 0, PAIRED),
                    PAIRED,
                )
            for j in range(CHUNK - 1):
                nth = chunk * CHUNK + j
                row = tl.where(side > 0, blocks * BLOCK - 1 - nth, nth)
                there = (nth < below) & (row < n)
                w_j = sign * tl.load(signed + row, mask=there, other=0).to(tl.float64)
                w_j = tl.maximum(w_j, 0.0)
                y_j = sign * tl.load(ranked + row, mask=there, other=0.0).to(tl.float64)
                d = apart(place, y_j, PAIRED)
                d_w = scaled(d, w_j, PAIRED)
                w, m = plus(w, number(w_j), PAIRED), plus(m, d_w, PAIRED)
                q = plus(q, times(d_w, d, PAIRED), PAIRED)
                if HAS_VECTOR:
                    z_j = tl.load(along + row, mask=there, other=0.0).to(tl.float64)
                    z_j = scaled(apart(number(z_j), first, PAIRED), w_j, PAIRED)
                    zs = plus(zs, z_j, PAIRED)
            # Squares overflow sooner than what does not ask for them.
            q = tl.where(b2 == 0.0, 0.0, q[0]), tl.where(b2 == 0.0, 0.0, q[1])
            found = plus(scaled(w, b0, PAIRED), scaled(m, b1, PAIRED), PAIRED)
            values = plus(values, plus(found, scaled(q, b2, PAIRED), PAIRED), PAIRED)
            if WANT_GRAD:
                slope = plus(scaled(w, b1, PAIRED), scaled(m, 2.0 * b2, PAIRED), PAIRED)
                slopes = plus(slopes, slope, PAIRED)
            if HAS_VECTOR:
                curve = minus(times(z, w, PAIRED), zs, PAIRED)
                curves = plus(curves, scaled(curve, 2.0 * b2, PAIRED), PAIRED)
            if WANT_DIAGONAL:
                masses = plus(masses, scaled(w, 2.0 * b2, PAIRED), PAIRED)
        to = tl.load(order + i, mask=mine, other=0)
        if WANT_GRAD:
            answer = sign * own * one(slopes) * scale + bad
            tl.store(grad + to, answer.to(grad.dtype.element_ty), mask=mine)
        if HAS_VECTOR:
            answer = own * one(curves) * scale + bad
            tl.store(hvp + to, answer.to(hvp.dtype.element_ty), mask=mine)
        if WANT_DIAGONAL:
            answer = own * one(masses) * scale + bad
            tl.store(hess + to, answer.to(hess.dtype.element_ty), mask=mine)
        # Each pair has one negative: its rows carry the loss.
        losses = plus(losses, scaled(values, tl.where(sign > 0.0, own, 0.0), PAIRED), PAIRED)
    # The program that comes last adds up.
    shares += task * 2 * programs
    store_number(shares + tl.program_id(0), programs, total(losses, PAIRED), None, PAIRED)
    tl.debug_barrier()
    if tl.atomic_add(arrivals + task, 1, sem="acq_rel", scope="gpu") == programs - 1:
        loss = _sum_of_shares(shares, programs, PAIRED, STEP) * scale + bad
        tl.store(value + task, loss.to(value.dtype.element_ty))
        tl.store(pair_weight + task, pairs + bad)
        if COUNTED:
            tl.atomic_add(one_class, (pairs == 0.0).to(tl.int64))
        tl.store(arrivals + task, 0)  # for the next launch
