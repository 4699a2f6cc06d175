# The compiled kernel (src/native/module.cpp). Arrays are contiguous. Arguments are positional.

from typing import Any

from numpy.typing import NDArray

from everypair.kernel.native import NativeForm, PieceForm

Array = NDArray[Any]
MaybeArray = NDArray[Any] | None

# Answers are status, value and pair weight. The status has bits: 1, 2 and 4 for bad scores, labels
# and weights, which are checked for binary pairs, and 8 if the batch must be computed in another
# way. Functions fill the arrays grad, hess and hvp that are not None.
Answer = tuple[int, float, float]

# `pairs` is None for binary pairs. It is (events,) if the labels are targets: then rows with
# different targets are pairs, and with events targets are survival times. For rows sorted by group
# and rank it has order, ranks, winner, loser and exponent of `everypair.inputs.ranked.RankedRows`,
# and labels and weights are None. Only polynomials take ordered pairs.
def evaluate(
    scores: Array, labels: MaybeArray, weights: MaybeArray, offsets: MaybeArray,
    pairs: tuple[Any, ...] | None, vector: MaybeArray, surrogate: NativeForm, mean: bool,
    threads: int, grad: MaybeArray, hess: MaybeArray, hvp: MaybeArray,
) -> Answer: ...  # fmt: skip

# The same for tensors of torch: value, pair weight and gradient. None if the kernel cannot read the
# tensors as they are (contiguous, on the CPU, of one task), if the status would not be 0, or if the
# loss is 1e30 or more. It also returns None until `read_tensors` was called.
def evaluate_tensors(
    scores: Any, labels: Any, weights: MaybeArray, surrogate: NativeForm, mean: bool, threads: int
) -> tuple[Any, float, Any] | None: ...

# The value is the weight of the correctly ordered pairs (ties half). For targets, `ordered` and
# `counts` get the number of pairs of each row in order, ties half, and of all its pairs.
def concordance(
    scores: Array, labels: MaybeArray, weights: MaybeArray, offsets: MaybeArray,
    pairs: tuple[Any, ...] | None, threads: int, ordered: MaybeArray, counts: MaybeArray,
) -> Answer: ...  # fmt: skip

# Copy the scores of each class to the first entries of pos and neg; return status and positives.
def split(scores: Array, labels: Array, pos: Array, neg: Array) -> tuple[int, int]: ...

# Add float32 scores to a table of 2**bits buckets: see `everypair.streaming.score_buckets`.
def count(scores: Array, bits: int, table: Array) -> None: ...

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
    piece: PieceForm, threads: int,
) -> RowSums: ...  # fmt: skip

# Return `everypair.row_sums.smooth_precision_loss` without groups, and fill its gradient.
# Scores are float32 or float64, positive is bool and has both values, and shares are those of the
# positives. The surrogate is one piece without a shift.
def smooth_precision(
    scores: Array, positive: Array, weights: MaybeArray, shares: Array,
    piece: PieceForm, threads: int, grad: Array,
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
