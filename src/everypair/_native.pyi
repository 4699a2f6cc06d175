# The compiled kernel (src/native/module.cpp). Arrays are contiguous. Arguments are positional.

from typing import Any

from numpy.typing import NDArray

from everypair.kernel.native import NativeForm

Array = NDArray[Any]
MaybeArray = NDArray[Any] | None

# Answers are status, value and pair weight. The kernel checks the values of scores, labels and
# weights: the status is 0 unless one of them is bad. A value of NaN says that the batch must be
# computed in another way. Functions fill the arrays grad, hess and hvp that are not None.
Answer = tuple[int, float, float]

def evaluate(
    scores: Array, labels: Array, weights: MaybeArray, offsets: MaybeArray, vector: MaybeArray,
    surrogate: NativeForm, mean: bool, threads: int,
    grad: MaybeArray, hess: MaybeArray, hvp: MaybeArray,
) -> Answer: ...  # fmt: skip

# The same for tensors of torch: value, pair weight and gradient. None if the kernel cannot read the
# tensors as they are (contiguous, on the CPU, of one task), if the status would not be 0, or if the
# loss is 1e30 or more. It also returns None until `read_tensors` was called.
def evaluate_tensors(
    scores: Any, labels: Any, weights: MaybeArray, surrogate: NativeForm, mean: bool, threads: int
) -> tuple[Any, float, Any] | None: ...

# The value is the weight of the correctly ordered pairs (ties half).
def auc(
    scores: Array, labels: Array, weights: MaybeArray, offsets: MaybeArray, threads: int
) -> Answer: ...

# The same two for ordered pairs of polynomials. `ranked` has the arrays order, ranks, offsets,
# winner and loser of `everypair.inputs.ranked.RankedRows`. A sum is multiplied by `unit`. Nothing
# is checked.
def evaluate_ordered(
    scores: Array, ranked: tuple[MaybeArray, ...], vector: MaybeArray,
    surrogate: NativeForm, mean: bool, unit: float, threads: int,
    grad: MaybeArray, hess: MaybeArray, hvp: MaybeArray,
) -> Answer: ...  # fmt: skip
def auc_ordered(scores: Array, ranked: tuple[MaybeArray, ...], threads: int) -> Answer: ...

# The same two for targets without weights and groups, in the order of the scores. The first one is
# for float32 scores and few grades. With events, the targets of the others are survival times.
# `rank_targets` fills order and ranks, and `auc_targets` the number of pairs of each row in order,
# ties half, and of all its pairs.
def evaluate_graded(
    scores: Array, targets: Array, surrogate: NativeForm, mean: bool, threads: int, grad: MaybeArray
) -> Answer: ...
def rank_targets(targets: Array, events: MaybeArray, order: Array, ranks: Array) -> None: ...
def auc_targets(
    scores: Array, targets: Array, events: MaybeArray, ordered: MaybeArray, pairs: MaybeArray
) -> Answer: ...

# Copy the scores of each class to the first entries of pos and neg; return status and positives.
def split(scores: Array, labels: Array, pos: Array, neg: Array) -> tuple[int, int]: ...

# Add float32 scores to a table of 2**bits buckets: see `everypair.streaming._buckets`.
def count(scores: Array, bits: int, table: Array) -> None: ...

# The shift and rate of an `everypair.row_sums._pieces.Piece`, and its coefficients by order and
# side: powers (3, 2, K) and polynomials (3, 2, 3).
Piece = tuple[float, float, Array, Array]

# Sums of one piece of a surrogate over all pairs of a row (n,) and another row (m,), both float64.
class RowSums:
    # Fill the arrays of the orders 0, 1 and 2 that are not None: (n,) sums over the others with
    # weights (m,), or with per_other (m,) sums over the rows with weights (n,). All float64.
    def fill(
        self, weights: Array, per_other: bool, threads: int,
        outputs: tuple[MaybeArray, MaybeArray, MaybeArray],
    ) -> None: ...  # fmt: skip

# Prepare them. Group g has the rows row_offsets[g] .. row_offsets[g + 1] - 1, and likewise others.
# A score that is not finite gives results without meaning.
def row_sums(
    rows: Array, others: Array, row_offsets: MaybeArray, other_offsets: MaybeArray,
    piece: Piece, threads: int,
) -> RowSums: ...  # fmt: skip

# Return `everypair.row_sums.smooth_precision_loss` without groups, and fill its gradient.
# Scores are float32 or float64, positive is bool and has both values, and shares are those of the
# positives. The surrogate is one piece without a shift.
def smooth_precision(
    scores: Array, positive: Array, weights: MaybeArray, shares: Array,
    piece: Piece, threads: int, grad: Array,
) -> float: ...  # fmt: skip

# Return the name of the instruction set in use: baseline, avx2 or avx512; neon on aarch64.
def isa() -> str: ...

# Return the names of all instruction sets that this machine can run. For tests and benchmarks.
def isas() -> list[str]: ...

# Use one of them for all further calls of this process.
def use_isa(name: str) -> None: ...

# Run on the threads that the function at this address starts, called as GOMP_parallel.
def borrow_team(fork: int) -> None: ...

# Read and make tensors by the functions of DLPack in a capsule.
def read_tensors(functions: Any) -> None: ...
