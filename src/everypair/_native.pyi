# The compiled kernel (src/native/module.cpp). Arrays are contiguous. Each may also be given as a
# tuple of its address, the format of an element as in `struct` ("f" for float32), and its size. The
# kernel checks the values and returns a status other than 0 if one of them is bad. Arguments are
# positional.

from typing import Any

from numpy.typing import NDArray

from everypair._smooth_kernel import SmoothForm
from everypair.surrogates import ExponentialCoefficients, KnotTerm

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

# The same for a smooth surrogate, and for an exponential one.
def evaluate_smooth(
    scores: NDArray[Any],
    labels: NDArray[Any],
    weights: NDArray[Any] | None,
    offsets: NDArray[Any] | None,
    vector: NDArray[Any] | None,
    form: SmoothForm,
    mean: bool,
    threads: int,
    grad: NDArray[Any] | None,
    hess: NDArray[Any] | None,
    hvp: NDArray[Any] | None,
) -> tuple[int, float, float]: ...
def evaluate_exponential(
    scores: NDArray[Any],
    labels: NDArray[Any],
    weights: NDArray[Any] | None,
    offsets: NDArray[Any] | None,
    vector: NDArray[Any] | None,
    term: ExponentialCoefficients,
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

# The same two for targets without weights and groups, in the order of the scores. The first one is
# for float32 scores and few grades; the value is NaN if another plan has to be used. With events,
# the targets of the others are survival times. `rank_targets` fills order and ranks, and
# `auc_targets` the number of pairs of each row in order, ties half, and of all its pairs.
def evaluate_graded(
    scores: NDArray[Any],
    targets: NDArray[Any],
    terms: tuple[KnotTerm, ...],
    mean: bool,
    threads: int,
    grad: NDArray[Any] | None,
) -> tuple[float, float]: ...
def rank_targets(
    targets: NDArray[Any],
    events: NDArray[Any] | None,
    order: NDArray[Any],
    ranks: NDArray[Any],
) -> None: ...
def auc_targets(
    scores: NDArray[Any],
    targets: NDArray[Any],
    events: NDArray[Any] | None,
    ordered: NDArray[Any] | None,
    pairs: NDArray[Any] | None,
) -> tuple[float, float]: ...

# Copy the scores of each class to the first entries of pos and neg; return status and positives.
def split(
    scores: NDArray[Any], labels: NDArray[Any], pos: NDArray[Any], neg: NDArray[Any]
) -> tuple[int, int]: ...

# Add float32 scores to a table of 2**bits buckets: see `everypair.streaming._buckets`.
def count(scores: NDArray[Any], bits: int, table: NDArray[Any]) -> None: ...

# Sums of one piece of a surrogate over all pairs of a row (n,) and another row (m,), both float64.
class RowSums:
    # Fill one array for each order (0, 1, 2): (n,) sums over the others with weights (m,), or with
    # per_other (m,) sums over the rows with weights (n,). All float64.
    def fill(
        self,
        weights: NDArray[Any],
        orders: tuple[int, ...],
        per_other: bool,
        threads: int,
        outputs: tuple[NDArray[Any], ...],
    ) -> None: ...

# Prepare them. Group g has the rows row_offsets[g] .. row_offsets[g + 1] - 1, and likewise others.
# The coefficients of `everypair.ranks._pieces.Piece` are by order and side: powers (3, 2, K) and
# polynomials (3, 2, 3). A score that is not finite gives results without meaning.
def row_sums(
    rows: NDArray[Any],
    others: NDArray[Any],
    row_offsets: NDArray[Any] | None,
    other_offsets: NDArray[Any] | None,
    shift: float,
    rate: float,
    powers: NDArray[Any],
    polynomials: NDArray[Any],
    threads: int,
) -> RowSums: ...

# Return the loss of `everypair.ranks.smooth_precision_loss` without groups, and fill its gradient.
# Scores are float32 or float64, positive is bool and has both values, and shares are those of the
# positives. The surrogate is one piece without a shift, with the coefficients of `row_sums`.
def smooth_precision(
    scores: NDArray[Any],
    positive: NDArray[Any],
    weights: NDArray[Any] | None,
    shares: NDArray[Any],
    rate: float,
    powers: NDArray[Any],
    polynomials: NDArray[Any],
    threads: int,
    grad: NDArray[Any],
) -> float: ...

# Return the name of the instruction set in use: baseline, avx2 or avx512; neon on aarch64.
def isa() -> str: ...

# Return the names of all instruction sets that this machine can run. For tests and benchmarks.
def isas() -> list[str]: ...

# Use one of them for all further calls of this process.
def use_isa(name: str) -> None: ...

# Run on the threads that the function at this address starts, called as GOMP_parallel.
def borrow_team(fork: int) -> None: ...
