# The compiled kernel (src/native/module.cpp). Arrays are contiguous. The kernel checks their values
# and returns a status other than 0 if one of them is bad.

from typing import Any

from numpy.typing import NDArray

from everypair.surrogates import KnotTerm

# Return status, value and pair weight; fill the arrays grad, hess and hvp that are not None.
def evaluate(
    scores: NDArray[Any],
    labels: NDArray[Any],
    weights: NDArray[Any] | None,
    offsets: NDArray[Any] | None,
    vector: NDArray[Any] | None,
    terms: tuple[KnotTerm, ...],
    mean: bool,
    threads: int,
    grad: NDArray[Any] | None,
    hess: NDArray[Any] | None,
    hvp: NDArray[Any] | None,
) -> tuple[int, float, float]: ...

# The same for a smooth surrogate: see `everypair._smooth_kernel.SmoothForm`.
def evaluate_smooth(
    scores: NDArray[Any],
    labels: NDArray[Any],
    weights: NDArray[Any] | None,
    offsets: NDArray[Any] | None,
    vector: NDArray[Any] | None,
    term: tuple[float, float, float, float, float, bool],
    value: NDArray[Any],
    slope: NDArray[Any],
    curvature: NDArray[Any],
    inside: NDArray[Any] | None,
    mean: bool,
    threads: int,
    grad: NDArray[Any] | None,
    hess: NDArray[Any] | None,
    hvp: NDArray[Any] | None,
) -> tuple[int, float, float]: ...

# Return status, weight of the correctly ordered pairs (ties half) and weight of all pairs.
def auc(
    scores: NDArray[Any],
    labels: NDArray[Any],
    weights: NDArray[Any] | None,
    offsets: NDArray[Any] | None,
    threads: int,
) -> tuple[int, float, float]: ...

# The same two for ordered pairs. `ranked` has the arrays order, ranks, offsets, winner and loser of
# `everypair.targets.ranked.RankedRows`. They return no status; the value is NaN if the sums would
# lose digits. A sum is multiplied by `unit`.
def evaluate_ordered(
    scores: NDArray[Any],
    ranked: tuple[NDArray[Any] | None, ...],
    vector: NDArray[Any] | None,
    terms: tuple[KnotTerm, ...],
    mean: bool,
    unit: float,
    threads: int,
    grad: NDArray[Any] | None,
    hess: NDArray[Any] | None,
    hvp: NDArray[Any] | None,
) -> tuple[float, float]: ...
def auc_ordered(
    scores: NDArray[Any], ranked: tuple[NDArray[Any] | None, ...], threads: int
) -> tuple[float, float]: ...

# Return the name of the instruction set in use: baseline, avx2 or avx512; neon on aarch64.
def isa() -> str: ...

# Run on the threads that the function at this address starts, called as GOMP_parallel.
def borrow_team(fork: int) -> None: ...
