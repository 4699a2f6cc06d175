from typing import Any

from numpy.typing import NDArray

def evaluate(
    scores: NDArray[Any],
    labels: NDArray[Any],
    weights: NDArray[Any] | None,
    offsets: NDArray[Any] | None,
    vector: NDArray[Any] | None,
    terms: tuple[tuple[float, float, float, float, bool], ...],
    mean: bool,
    threads: int,
    grad: NDArray[Any] | None,
    hess: NDArray[Any] | None,
    hvp: NDArray[Any] | None,
) -> tuple[int, float, float]: ...
def auc(
    scores: NDArray[Any],
    labels: NDArray[Any],
    weights: NDArray[Any] | None,
    offsets: NDArray[Any] | None,
    threads: int,
) -> tuple[int, float, float]: ...
def isa() -> str: ...
def borrow_team(fork: int) -> None: ...
