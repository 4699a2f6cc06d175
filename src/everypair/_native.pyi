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

# Copy the scores of each class to the first entries of pos and neg; return status and positives.
def split(
    scores: NDArray[Any], labels: NDArray[Any], pos: NDArray[Any], neg: NDArray[Any]
) -> tuple[int, int]: ...

# Add float32 scores to a table of 2**bits buckets: see `everypair.streaming._buckets`.
def count(scores: NDArray[Any], bits: int, table: NDArray[Any]) -> None: ...

# Return the name of the instruction set in use: baseline, avx2 or avx512; neon on aarch64.
def isa() -> str: ...

# Run on the threads that the function at this address starts, called as GOMP_parallel.
def borrow_team(fork: int) -> None: ...
