"""What an experiment consists of: trials in cells, shared settings, and what a trial leaves.

A cell is one (data, imratio, loss, optimiser, seed). Its trials differ in batch size and learning
rate and compete by validation AUC; what the winner reaches on the test set is the cell's result.

>>> grid = Grid(
...     data="digits",
...     imratios=(0.1,),
...     losses=("logistic",),
...     batches=(50, 500),
...     seeds=(0, 1),
...     rates={"logistic": (0.1, 1.0)},
... )
>>> len(grid.cells()), len(grid.trials())
(2, 8)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any, Literal

__all__ = ["FULL_BATCH", "Cell", "Grid", "Record", "Settings", "TableFile", "Trial"]

FULL_BATCH = 0
"""The batch size that means all rows at once."""


@dataclass(frozen=True, order=True)
class Cell:
    """Trials that compete: hyper-parameters are chosen inside a cell."""

    data: str
    imratio: float  # share of positives kept in subtrain and validation; 0: as the data are
    loss: str
    optimiser: str
    seed: int


@dataclass(frozen=True, order=True)
class Trial:
    """One training run."""

    cell: Cell
    batch: int
    rate: float


@dataclass(frozen=True)
class TableFile:
    """A user's table: where it lies, which column is the label, and which holds groups."""

    path: str
    label: str
    group: str | None = None
    positive: str | None = (
        None  # the value that counts as positive; None: 1, True, or the rarer one
    )


@dataclass(frozen=True)
class Settings:
    """What all trials of a store share. A store that was begun with others is not continued."""

    model: str = "mlp"
    scores: Literal["raw", "sigmoid"] = "raw"
    epochs: int = 20
    protocol: Literal["corrected", "paper"] = "corrected"
    sampler: Literal["shuffle", "stratified"] = "shuffle"
    margin: float = 1.0
    table: TableFile | None = None
    fingerprint: str = ""  # of the data, so that a store is not continued on other rows


@dataclass(frozen=True)
class Grid:
    """All combinations to be tried. Every loss gets as many rates as the others."""

    data: str
    imratios: tuple[float, ...]
    losses: tuple[str, ...]
    batches: tuple[int, ...]
    seeds: tuple[int, ...]
    rates: dict[str, tuple[float, ...]]  # by loss, or by "loss/optimiser" where they differ
    optimisers: dict[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # by loss; absent: sgd, or pesg for aucm

    def cells(self) -> list[Cell]:
        """Return the cells in the order in which they run."""
        return [
            Cell(self.data, imratio, loss, optimiser, seed)
            for imratio, seed, loss in product(self.imratios, self.seeds, self.losses)
            for optimiser in self.optimisers.get(loss, (default_optimiser(loss),))
        ]

    def trials(self) -> list[Trial]:
        """Return every trial, cell by cell."""
        return [
            Trial(cell, batch, rate)
            for cell in self.cells()
            for batch, rate in product(self.batches, self.rates_of(cell))
        ]

    def rates_of(self, cell: Cell) -> tuple[float, ...]:
        """Return the learning rates that compete in a cell."""
        return self.rates.get(f"{cell.loss}/{cell.optimiser}") or self.rates[cell.loss]


def default_optimiser(loss: str) -> str:
    """Return what a loss is trained with where nothing else is said: LIBAUC's brings its own."""
    return "pesg" if loss == "aucm" else "sgd"


@dataclass(frozen=True)
class Record:
    """What a trial left.

    `history` holds columns of equal length, one entry an epoch: ``epoch`` (0 is before training),
    ``subtrain_loss``, ``subtrain_auc``, ``validation_loss``, ``validation_auc``, ``test_auc``
    (never used for choosing). A diverged trial has the epochs before it did, which may be chosen.
    """

    trial: Trial
    state: Literal["finished", "diverged", "failed"]
    history: dict[str, list[float]]
    best_epoch: int = -1  # of the greatest validation AUC; the first of them; -1: none
    validation_auc: float = float("nan")
    test_auc: float = float("nan")
    roc: tuple[list[float], list[float]] = ((), ())  # type: ignore[assignment]  # fpr and tpr on test, at the best epoch
    diverged_at: int | None = None  # epoch
    reason: str = ""  # why it diverged or failed, and what to try
    seconds: float = 0.0
    device: str = "cpu"
    n_one_class: int = 0  # batches that held no pair

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings, as a store keeps them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Record:
        """Return the record that `to_dict` wrote."""
        trial = plain["trial"]
        trial = Trial(Cell(**trial["cell"]), trial["batch"], trial["rate"])
        return cls(**{**plain, "trial": trial, "roc": tuple(plain["roc"])})
