"""Programs that wait for one another, and the sums over all of them that they exchange.

Only for launches whose programs all run at once, or for one program alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from everypair.torch.triton.cells import CELLS, MOST_CHUNKS

__all__ = ["arrive", "before", "meet", "publish", "sum_before", "sum_of", "wait"]


@triton.jit
def arrive(counter):
    """Say that this program has written what others wait for."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def wait(counter, target):
    """Return when so many have arrived; what they wrote can be read then."""
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < target:
        pass
    tl.debug_barrier()


@triton.jit
def meet(counter, met, CHUNKS: tl.constexpr):
    """Wait for the programs of all chunks; return how many arrivals that makes."""
    if CHUNKS > 1:
        met += CHUNKS
        arrive(counter)
        wait(counter, met)
    else:
        tl.debug_barrier()  # what one thread has published, the others read
    return met


@triton.jit
def publish(work, kind, chunk, number):
    tl.store(work + kind * MOST_CHUNKS + chunk, number)


@triton.jit
def sum_of(work, kind, CHUNKS: tl.constexpr):
    k = tl.arange(0, CHUNKS)
    return tl.sum(tl.load(work + kind * MOST_CHUNKS + k), 0)


@triton.jit
def sum_before(work, kind, chunk, CHUNKS: tl.constexpr):
    k = tl.arange(0, CHUNKS)
    shares = tl.load(work + kind * MOST_CHUNKS + k)
    return tl.sum(tl.where(k < chunk, shares, tl.zeros_like(shares)), 0)


@triton.jit
def before(totals, running, i, CHUNKS: tl.constexpr, CHUNK: tl.constexpr):
    """Return the sum over all cells before some; their place is CELLS for all cells."""
    k = tl.arange(0, CHUNKS)
    shares = tl.load(totals + k)[None, :]
    earlier = tl.where(k[None, :] < (i // CHUNK)[:, None], shares, tl.zeros_like(shares))
    within = tl.load(running + i, mask=i < CELLS, other=0)
    return tl.sum(earlier, 1) + within
