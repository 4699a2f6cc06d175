"""Compute losses whose terms have no knot on a GPU, from three moments of each class.

Let w, m and q be the moments of the other class about a place c (see `double_double`), and g the
distance of a row's place, s + shift for a negative and s - shift for a positive, from c. Then

    sum of d   = m + g w
    sum of d^2 = q + g (m + (m + g w))

over all pairs of the row, and nothing has to be sorted. Each block takes its moments about its own
mean, so an offset of all scores causes no rounding; the last program moves them to the mean of the
class.

    class_moments  moments of the blocks, then of the classes, and the loss
    derivatives    gradient, diagonal of the Hessian, and Hessian times vector
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from everypair.torch.triton.common.double_double import (
    add, distance, from_double, load_moments, load_number, moments_at, mul, mul_double,
    store_moments, store_number, sub, sum_all, to_double, two_sum,
)  # fmt: skip
from everypair.torch.triton.common.launch import (
    Job, Trace, buffers, coefficients, launch, on_device,
)  # fmt: skip
from everypair.torch.triton.common.workspace import (
    CLASS_COLUMNS, MOMENTS_DD, load_term, moment_words,
)  # fmt: skip

BLOCK = 2048
"""Rows that a program reads."""
STEP = 512
"""Blocks that are added up at once."""


def by_moments(job: Job) -> Trace:
    """Compute any job whose terms have no knot."""
    n, tasks = job.n, job.tasks
    blocks = -(-n // BLOCK)
    terms = on_device(coefficients(job.terms), job.scores.device)
    tensors = buffers(job, moment_words(tasks, blocks), tasks, terms=terms)
    dd = job.scores.dtype is torch.float64
    constants = {**job.constants, "DD": dd, "BLOCK": BLOCK, "STEP": STEP}
    kernels = [class_moments]
    if job.grad is not None or job.hess is not None or job.hvp is not None:
        kernels.append(derivatives)
    arguments = (blocks, tasks), tensors, {"n": n}, constants
    launched = [
        launch(kernel, *arguments, num_warps=8, enable_fp_fusion=False) for kernel in kernels
    ]
    return Trace(tensors, launched)


@triton.jit
def _polynomial(terms, N_TERMS: tl.constexpr):
    """Return the shift of the first term, and the sum of all terms as coefficients of its d."""
    shift, b0, b1, b2, _ = load_term(terms, 0)
    a0, a1, a2 = from_double(b0), from_double(b1), from_double(b2)
    for k in tl.static_range(1, N_TERMS):
        _, b0, b1, b2, _ = load_term(terms, k)
        a0 = add(a0, from_double(b0), True)
        a1 = add(a1, from_double(b1), True)
        a2 = add(a2, from_double(b2), True)
    return shift, to_double(a0), to_double(a1), to_double(a2)


@triton.jit
def _load_rows(scores, labels, weights, start, i, n, HAS_WEIGHTS: tl.constexpr):
    """Return scores, weights (0 where the label is NaN) and which rows are positive."""
    inside = i < n
    s = tl.load(scores + start + i, mask=inside, other=0.0).to(tl.float64)
    label = tl.load(labels + start + i, mask=inside, other=0)
    if HAS_WEIGHTS:
        w = tl.load(weights + start + i, mask=inside, other=0.0).to(tl.float64)
    else:
        w = tl.where(inside, 1.0, 0.0).to(tl.float64)
    return s, tl.where((label > 0) | (label <= 0), w, 0.0), label > 0


@triton.jit
def _mean(w, x):
    """Return the weighted mean of x, or 0 without weight."""
    mass = tl.sum(w, 0)
    return tl.sum(w * x, 0) / tl.where(mass > 0.0, mass, 1.0)


@triton.jit
def _moments_of_rows(s, w, DD: tl.constexpr):
    """Return the moments of rows about their mean, rounded to float64."""
    x = _mean(w, s)
    d = distance(from_double(x), s, DD)
    d_w = mul_double(d, w, DD)
    q = sum_all(mul(d_w, d, DD), DD)
    return sum_all(from_double(w), DD), sum_all(d_w, DD), q, x


@triton.jit
def _moments_of_blocks(columns, blocks, DD: tl.constexpr, STEP: tl.constexpr):
    """Return the moments of a class about its mean, and the weighted sum of its vector."""
    mass, moment = tl.zeros((STEP,), tl.float64), tl.zeros((STEP,), tl.float64)
    for start in range(0, blocks, STEP):
        k = start + tl.arange(0, STEP)
        w, _, _, x = load_moments(columns + k, blocks, k < blocks, DD)
        mass += w[0]
        moment += w[0] * x
    all_mass = tl.sum(mass, 0)
    x = tl.sum(moment, 0) / tl.where(all_mass > 0.0, all_mass, 1.0)
    zero = tl.zeros((STEP,), tl.float64)
    w, m, q, z = from_double(zero), from_double(zero), from_double(zero), from_double(zero)
    for start in range(0, blocks, STEP):
        k = start + tl.arange(0, STEP)
        here = load_moments(columns + k, blocks, k < blocks, DD)
        w_k, m_k, q_k = moments_at(here, from_double(zero + x), DD)
        w, m, q = add(w, w_k, DD), add(m, m_k, DD), add(q, q_k, DD)
        z_k = load_number(columns + MOMENTS_DD * blocks + k, blocks, k < blocks, DD)
        z = add(z, z_k, DD)
    moments = sum_all(w, DD), sum_all(m, DD), sum_all(q, DD), x
    return moments, sum_all(z, DD)


@triton.jit
def _finish(columns, blocks, terms, N_TERMS: tl.constexpr, MEAN: tl.constexpr,
            DD: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    """Store the moments of both classes; return the loss and the weight of all pairs."""
    ends = columns + (2 * CLASS_COLUMNS + 1) * blocks
    pos, z_pos = _moments_of_blocks(columns, blocks, DD, STEP)
    neg, z_neg = _moments_of_blocks(columns + CLASS_COLUMNS * blocks, blocks, DD, STEP)
    store_moments(ends, 1, pos, None, DD)
    store_number(ends + MOMENTS_DD, 1, z_pos, None, DD)
    store_moments(ends + CLASS_COLUMNS, 1, neg, None, DD)
    store_number(ends + CLASS_COLUMNS + MOMENTS_DD, 1, z_neg, None, DD)
    nonfinite = tl.zeros((STEP,), tl.float64)
    for start in range(0, blocks, STEP):
        k = start + tl.arange(0, STEP)
        nonfinite += tl.load(columns + 2 * CLASS_COLUMNS * blocks + k, mask=k < blocks, other=0.0)
    bad = tl.sum(nonfinite, 0)
    tl.store(ends + 2 * CLASS_COLUMNS, bad)
    # The positives about the mean of the negatives plus the shift, so that d = d_pos - d_neg.
    shift, a0, a1, a2 = _polynomial(terms, N_TERMS)
    w, m, q = moments_at(pos, two_sum(neg[3], shift), DD)
    w_neg, m_neg, q_neg, _ = neg
    loss = mul_double(mul(w, w_neg, DD), a0, DD)
    lines = sub(mul(w_neg, m, DD), mul(w, m_neg, DD), DD)
    loss = add(loss, mul_double(lines, a1, DD), DD)
    squares = add(mul(w_neg, q, DD), mul(w, q_neg, DD), DD)
    squares = sub(squares, mul_double(mul(m, m_neg, DD), 2.0, DD), DD)
    loss = add(loss, mul_double(squares, a2, DD), DD)
    pairs = to_double(w) * to_double(w_neg)
    scale = 1.0 / tl.where(pairs > 0.0, pairs, 1.0) if MEAN else tl.full((), 1.0, tl.float64)
    return to_double(loss) * scale + bad, pairs + bad


@triton.jit
def class_moments(
    scores, labels, weights, vector, workspace, terms, value, pair_weight, one_class, counters, n,
    N_TERMS: tl.constexpr, MEAN: tl.constexpr, COUNTED: tl.constexpr, HAS_WEIGHTS: tl.constexpr,
    HAS_VECTOR: tl.constexpr, DD: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Store the moments of each block and, in the last program of a task, of the classes.

    Programs: (blocks, tasks). See the package for other arguments.

    labels       rows whose label is NaN are left out
    workspace    written and read: moments of blocks and classes
    BLOCK, STEP  rows of a block; blocks that are added up at once
    """
    # 1. Load the rows of this block.
    task = tl.program_id(1).to(tl.int64)
    block, blocks = tl.program_id(0), tl.num_programs(0)
    i = block * BLOCK + tl.arange(0, BLOCK)
    s, w, positive = _load_rows(scores, labels, weights, task * n, i, n, HAS_WEIGHTS)
    columns = workspace + task * (2 * CLASS_COLUMNS + 1) * (blocks + 1)
    if HAS_VECTOR:
        first = tl.load(vector + task * n).to(tl.float64)
        z = tl.load(vector + task * n + i, mask=i < n, other=0.0).to(tl.float64)
        z = mul_double(distance(from_double(z), first, DD), w, DD)
    # 2. Store their moments: positives (side 0), negatives (side 1), then 0 or NaN.
    for side in tl.static_range(2):
        partner = positive if side == 0 else (positive == 0)
        to = columns + side * CLASS_COLUMNS * blocks + block
        store_moments(to, blocks, _moments_of_rows(s, tl.where(partner, w, 0.0), DD), None, DD)
        z_k = from_double(tl.zeros((), tl.float64))
        if HAS_VECTOR:
            z_k = tl.where(partner, z[0], 0.0), tl.where(partner, z[1], 0.0)
            z_k = sum_all(z_k, DD)
        store_number(to + MOMENTS_DD * blocks, blocks, z_k, None, DD)
    tl.store(columns + 2 * CLASS_COLUMNS * blocks + block, tl.sum(s * 0.0, 0))
    tl.debug_barrier()
    # 3. The last program adds up the blocks, stores the loss, and sets the counter to 0 again.
    if tl.atomic_add(counters + task, 1, sem="acq_rel", scope="gpu") == blocks - 1:
        found, pairs = _finish(columns, blocks, terms, N_TERMS, MEAN, DD, STEP)
        tl.store(value + task, found.to(value.dtype.element_ty))
        tl.store(pair_weight + task, pairs)
        if COUNTED:
            tl.atomic_add(one_class, (pairs == 0.0).to(tl.int64))
        tl.store(counters + task, 0)


@triton.jit
def derivatives(
    scores, labels, weights, vector, workspace, terms, grad, hess, hvp, n,
    N_TERMS: tl.constexpr, MEAN: tl.constexpr, HAS_WEIGHTS: tl.constexpr, WANT_GRAD: tl.constexpr,
    HAS_VECTOR: tl.constexpr, WANT_HESS: tl.constexpr, DD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the derivatives that are asked for, from the moments of the classes.

    Programs: (blocks, tasks). `workspace` is read: the moments of the classes. See the
    package for other arguments.
    """
    # 1. Load the rows of this block, and the moments of both classes.
    task = tl.program_id(1).to(tl.int64)
    blocks = tl.num_programs(0)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    to = task * n + i
    s, own, positive = _load_rows(scores, labels, weights, task * n, i, n, HAS_WEIGHTS)
    sign = tl.where(positive, -1.0, 1.0).to(tl.float64)
    columns = workspace + task * (2 * CLASS_COLUMNS + 1) * (blocks + 1)
    ends = columns + (2 * CLASS_COLUMNS + 1) * blocks
    bad = tl.load(ends + 2 * CLASS_COLUMNS)
    pos = load_moments(ends, 1, blocks > 0, DD)
    neg = load_moments(ends + CLASS_COLUMNS, 1, blocks > 0, DD)
    pairs = to_double(pos[0]) * to_double(neg[0])
    scale = 1.0 / tl.where(pairs > 0.0, pairs, 1.0) if MEAN else tl.full((), 1.0, tl.float64)
    shift, _, a1, a2 = _polynomial(terms, N_TERMS)
    w = tl.where(positive, neg[0][0], pos[0][0]), tl.where(positive, neg[0][1], pos[0][1])
    # 2. Gradient. Positives look at negatives along the axis y = -s, so that these lie below.
    if WANT_GRAD:
        m = tl.where(positive, -neg[1][0], pos[1][0]), tl.where(positive, -neg[1][1], pos[1][1])
        place = two_sum(sign * s, tl.zeros_like(s) + shift)
        gap = distance(place, tl.where(positive, -neg[3], pos[3]), DD)
        m = add(m, mul(gap, w, DD), DD)
        slope = add(mul_double(w, a1, DD), mul_double(m, 2.0 * a2, DD), DD)
        found = sign * own * to_double(slope) * scale
        found = tl.where(w[0] > 0.0, found, 0.0) + bad
        tl.store(grad + to, found.to(grad.dtype.element_ty), mask=i < n)
    # 3. Hessian times vector.
    if HAS_VECTOR:
        first = tl.load(vector + task * n).to(tl.float64)
        z = tl.load(vector + to, mask=i < n, other=0.0).to(tl.float64)
        z = distance(from_double(z), first, DD)
        z_pos = load_number(ends + MOMENTS_DD, 1, blocks > 0, DD)
        z_neg = load_number(ends + CLASS_COLUMNS + MOMENTS_DD, 1, blocks > 0, DD)
        zs = tl.where(positive, z_neg[0], z_pos[0]), tl.where(positive, z_neg[1], z_pos[1])
        curve = to_double(sub(mul(z, w, DD), zs, DD))
        found = 2.0 * a2 * own * curve * scale + bad
        tl.store(hvp + to, found.to(hvp.dtype.element_ty), mask=i < n)
    # 4. Diagonal of the Hessian.
    if WANT_HESS:
        found = 2.0 * a2 * own * to_double(w) * scale + bad
        tl.store(hess + to, found.to(hess.dtype.element_ty), mask=i < n)
