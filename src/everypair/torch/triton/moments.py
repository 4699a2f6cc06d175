"""Terms without a knot on a GPU: what one class needs to know about the other are three numbers.

With w, m and q the moments of the partners about a place c (see `double_double`), a row that sees
them from s + shift, or from s - shift on the other side, has

    sum of d   = m + g w               g = how far it lies from c
    sum of d^2 = q + g (m + (m + g w))

and nothing has to be sorted. Each block of rows takes its moments about its own mean, so an offset
of all scores rounds nothing off; the block that comes last moves them all to the mean of the class.

    gather   moments of the blocks, then of the classes, and the loss
    answer   gradient, Hessian times vector and the diagonal
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

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
    store,
    store_number,
    times,
    total,
    two_sum,
)
from everypair.torch.triton.launch import Trace, coefficients, launch, on_device, words, zeros

if TYPE_CHECKING:
    from everypair.torch.triton.launch import Job

__all__ = ["by_moments"]

BLOCK = 2048
"""Rows that a program reads."""
STEP = 512
"""Blocks that are added up at once."""
COLUMNS: tl.constexpr = tl.constexpr(9)  # of a class: seven of moments, two of a vector


def by_moments(job: Job) -> Trace:
    """Answer any question whose terms have no knot."""
    scores, labels, weights, vector, terms, mean, one_class = job[:7]
    value, pair_weight, grad, hvp, hess = job[7:12]
    n = scores.shape[-1]
    tasks = scores.numel() // n
    device = scores.device
    paired = scores.dtype is torch.float64
    blocks = -(-n // BLOCK)
    # Of each task: columns of both classes and of what is not finite, then the same of all blocks.
    room, spare = words(tasks * (2 * COLUMNS.value + 1) * (blocks + 1), tasks, device)
    weights_or_none = scores if weights is None else weights.contiguous()
    vector_or_none = scores if vector is None else vector.contiguous()
    numbers = on_device(coefficients(terms), device)
    counters = zeros(tasks, device)
    gathered = launch(
        gather, (blocks, tasks),
        (scores, labels, weights_or_none, vector_or_none, room, numbers, value,
         spare if pair_weight is None else pair_weight, value if one_class is None else one_class,
         counters),
        (n,),
        (len(terms), mean, one_class is not None, weights is not None, vector is not None, paired,
         BLOCK, STEP),
        num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    if grad is None and hvp is None and hess is None:
        return Trace(room, counters, [gathered])
    answered = launch(
        answer, (blocks, tasks),
        (scores, labels, weights_or_none, vector_or_none, room, numbers,
         value if grad is None else grad, value if hvp is None else hvp,
         value if hess is None else hess),
        (n,),
        (len(terms), mean, weights is not None, grad is not None, vector is not None,
         hess is not None, paired, BLOCK),
        num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    return Trace(room, counters, [gathered, answered])


@triton.jit
def _polynomial(terms, N_TERMS: tl.constexpr):
    """Return the sum of the terms, as coefficients of the first one's d."""
    a0, a1, a2 = number(tl.load(terms + 1)), number(tl.load(terms + 2)), number(tl.load(terms + 3))
    for k in tl.static_range(1, N_TERMS):
        a0 = plus(a0, number(tl.load(terms + 5 * k + 1)), True)
        a1 = plus(a1, number(tl.load(terms + 5 * k + 2)), True)
        a2 = plus(a2, number(tl.load(terms + 5 * k + 3)), True)
    return one(a0), one(a1), one(a2)


@triton.jit
def _own(scores, labels, weights, start, i, n, HAS_WEIGHTS: tl.constexpr):
    """Return scores, weights and which rows are positive."""
    inside = i < n
    s = tl.load(scores + start + i, mask=inside, other=0.0).to(tl.float64)
    label = tl.load(labels + start + i, mask=inside, other=0)
    if HAS_WEIGHTS:
        w = tl.load(weights + start + i, mask=inside, other=0.0).to(tl.float64)
    else:
        w = tl.where(inside, 1.0, 0.0).to(tl.float64)
    # A label that is NaN is neither: its row weighs nothing.
    return s, tl.where((label > 0) | (label <= 0), w, 0.0), label > 0


@triton.jit
def _mean(w, x):
    mass = tl.sum(w, 0)
    return tl.sum(w * x, 0) / tl.where(mass > 0.0, mass, 1.0)


@triton.jit
def _of_rows(s, w, PAIRED: tl.constexpr):
    """Return the moments of rows about their mean, as near as one double comes to it."""
    x = _mean(w, s)
    d = apart(number(x), s, PAIRED)
    d_w = scaled(d, w, PAIRED)
    q = total(times(d_w, d, PAIRED), PAIRED)
    return total(number(w), PAIRED), total(d_w, PAIRED), q, x


@triton.jit
def _of_blocks(columns, blocks, PAIRED: tl.constexpr, STEP: tl.constexpr):
    """Return the moments of a class about its mean, and the sum of its vector."""
    mass, moment = tl.zeros((STEP,), tl.float64), tl.zeros((STEP,), tl.float64)
    for start in range(0, blocks, STEP):
        k = start + tl.arange(0, STEP)
        w, _, _, x = loaded(columns + k, blocks, k < blocks, PAIRED)
        mass += w[0]
        moment += w[0] * x
    all_mass = tl.sum(mass, 0)
    x = tl.sum(moment, 0) / tl.where(all_mass > 0.0, all_mass, 1.0)
    zero = tl.zeros((STEP,), tl.float64)
    w, m, q, z = number(zero), number(zero), number(zero), number(zero)
    for start in range(0, blocks, STEP):
        k = start + tl.arange(0, STEP)
        here = loaded(columns + k, blocks, k < blocks, PAIRED)
        w_k, m_k, q_k = seen(here, number(zero + x), PAIRED)
        w, m, q = plus(w, w_k, PAIRED), plus(m, m_k, PAIRED), plus(q, q_k, PAIRED)
        z_k = loaded_number(columns + 7 * blocks + k, blocks, k < blocks, PAIRED)
        z = plus(z, z_k, PAIRED)
    moments = total(w, PAIRED), total(m, PAIRED), total(q, PAIRED), x
    return moments, total(z, PAIRED)


@triton.jit
def _of_classes(columns, blocks, terms, N_TERMS: tl.constexpr, MEAN: tl.constexpr,
                PAIRED: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    """Store the moments of the classes; return the loss and the weight of all pairs."""
    ends = columns + (2 * COLUMNS + 1) * blocks
    pos, z_pos = _of_blocks(columns, blocks, PAIRED, STEP)
    neg, z_neg = _of_blocks(columns + COLUMNS * blocks, blocks, PAIRED, STEP)
    store(ends, 1, pos, None, PAIRED)
    store_number(ends + 7, 1, z_pos, None, PAIRED)
    store(ends + COLUMNS, 1, neg, None, PAIRED)
    store_number(ends + COLUMNS + 7, 1, z_neg, None, PAIRED)
    taint = tl.zeros((STEP,), tl.float64)
    for start in range(0, blocks, STEP):
        k = start + tl.arange(0, STEP)
        taint += tl.load(columns + 2 * COLUMNS * blocks + k, mask=k < blocks, other=0.0)
    bad = tl.sum(taint, 0)
    tl.store(ends + 2 * COLUMNS, bad)
    # Positives seen from about the mean of the negatives, and how far negatives lie below that.
    w, m, q = seen(pos, two_sum(neg[3], tl.load(terms)), PAIRED)
    w_neg, m_neg, q_neg, _ = neg
    a0, a1, a2 = _polynomial(terms, N_TERMS)
    loss = scaled(times(w, w_neg, PAIRED), a0, PAIRED)
    lines = minus(times(w_neg, m, PAIRED), times(w, m_neg, PAIRED), PAIRED)
    loss = plus(loss, scaled(lines, a1, PAIRED), PAIRED)
    squares = plus(times(w_neg, q, PAIRED), times(w, q_neg, PAIRED), PAIRED)
    squares = minus(squares, scaled(times(m, m_neg, PAIRED), 2.0, PAIRED), PAIRED)
    loss = plus(loss, scaled(squares, a2, PAIRED), PAIRED)
    pairs = one(w) * one(w_neg)
    scale = 1.0 / tl.where(pairs > 0.0, pairs, 1.0) if MEAN else tl.full((), 1.0, tl.float64)
    return one(loss) * scale + bad, pairs + bad


@triton.jit
def gather(
    scores, labels, weights, vector, room, terms, value, pair_weight, one_class, arrivals, n,
    N_TERMS: tl.constexpr, MEAN: tl.constexpr, COUNTED: tl.constexpr, HAS_WEIGHTS: tl.constexpr,
    HAS_VECTOR: tl.constexpr, PAIRED: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Store the moments of a block; the program that comes last, those of the classes."""
    task = tl.program_id(1).to(tl.int64)
    block, blocks = tl.program_id(0), tl.num_programs(0)
    i = block * BLOCK + tl.arange(0, BLOCK)
    s, w, positive = _own(scores, labels, weights, task * n, i, n, HAS_WEIGHTS)
    columns = room + task * (2 * COLUMNS + 1) * (blocks + 1)
    if HAS_VECTOR:
        first = tl.load(vector + task * n).to(tl.float64)
        z = tl.load(vector + task * n + i, mask=i < n, other=0.0).to(tl.float64)
        z = scaled(apart(number(z), first, PAIRED), w, PAIRED)
    for side in tl.static_range(2):
        partner = positive if side == 0 else (positive == 0)
        to = columns + side * COLUMNS * blocks + block
        store(to, blocks, _of_rows(s, tl.where(partner, w, 0.0), PAIRED), None, PAIRED)
        z_k = number(tl.zeros((), tl.float64))
        if HAS_VECTOR:
            z_k = tl.where(partner, z[0], 0.0), tl.where(partner, z[1], 0.0)
            z_k = total(z_k, PAIRED)
        store_number(to + 7 * blocks, blocks, z_k, None, PAIRED)
    tl.store(columns + 2 * COLUMNS * blocks + block, tl.sum(s * 0.0, 0))
    tl.debug_barrier()
    if tl.atomic_add(arrivals + task, 1, sem="acq_rel", scope="gpu") == blocks - 1:
        found, pairs = _of_classes(columns, blocks, terms, N_TERMS, MEAN, PAIRED, STEP)
        tl.store(value + task, found.to(value.dtype.element_ty))
        tl.store(pair_weight + task, pairs)
        if COUNTED:
            tl.atomic_add(one_class, (pairs == 0.0).to(tl.int64))
        tl.store(arrivals + task, 0)  # for the next launch


@triton.jit
def answer(
    scores, labels, weights, vector, room, terms, grad, hvp, hess, n,
    N_TERMS: tl.constexpr, MEAN: tl.constexpr, HAS_WEIGHTS: tl.constexpr, WANT_GRAD: tl.constexpr,
    HAS_VECTOR: tl.constexpr, WANT_DIAGONAL: tl.constexpr, PAIRED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute what is asked for some rows."""
    task = tl.program_id(1).to(tl.int64)
    blocks = tl.num_programs(0)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    to = task * n + i
    s, own, positive = _own(scores, labels, weights, task * n, i, n, HAS_WEIGHTS)
    sign = tl.where(positive, -1.0, 1.0).to(tl.float64)
    columns = room + task * (2 * COLUMNS + 1) * (blocks + 1)
    ends = columns + (2 * COLUMNS + 1) * blocks
    bad = tl.load(ends + 2 * COLUMNS)
    pos = loaded(ends, 1, blocks > 0, PAIRED)
    neg = loaded(ends + COLUMNS, 1, blocks > 0, PAIRED)
    pairs = one(pos[0]) * one(neg[0])
    scale = 1.0 / tl.where(pairs > 0.0, pairs, 1.0) if MEAN else tl.full((), 1.0, tl.float64)
    _, a1, a2 = _polynomial(terms, N_TERMS)
    w = tl.where(positive, neg[0][0], pos[0][0]), tl.where(positive, neg[0][1], pos[0][1])
    if WANT_GRAD:
        # The mirrored class has its negatives above: the axis y = -s turns them around.
        m = (
            tl.where(positive, -neg[1][0], pos[1][0]),
            tl.where(positive, -neg[1][1], pos[1][1]),
        )
        place = two_sum(sign * s, tl.zeros_like(s) + tl.load(terms))
        gap = apart(place, tl.where(positive, -neg[3], pos[3]), PAIRED)
        m = plus(m, times(gap, w, PAIRED), PAIRED)
        slope = plus(scaled(w, a1, PAIRED), scaled(m, 2.0 * a2, PAIRED), PAIRED)
        found = sign * own * one(slope) * scale
        found = tl.where(w[0] > 0.0, found, 0.0) + bad
        tl.store(grad + to, found.to(grad.dtype.element_ty), mask=i < n)
    if HAS_VECTOR:
        first = tl.load(vector + task * n).to(tl.float64)
        z = tl.load(vector + to, mask=i < n, other=0.0).to(tl.float64)
        z = apart(number(z), first, PAIRED)
        z_pos = loaded_number(ends + 7, 1, blocks > 0, PAIRED)
        z_neg = loaded_number(ends + COLUMNS + 7, 1, blocks > 0, PAIRED)
        zs = tl.where(positive, z_neg[0], z_pos[0]), tl.where(positive, z_neg[1], z_pos[1])
        curve = one(minus(times(z, w, PAIRED), zs, PAIRED))
        found = 2.0 * a2 * own * curve * scale + bad
        tl.store(hvp + to, found.to(hvp.dtype.element_ty), mask=i < n)
    if WANT_DIAGONAL:
        found = 2.0 * a2 * own * one(w) * scale + bad
        tl.store(hess + to, found.to(hess.dtype.element_ty), mask=i < n)
