"""The parts of an experiment: trials in cells, shared settings, and the record of a trial.

A cell is one (data, imratio, loss, optimiser, seed). Its trials differ in batch size and learning
rate, or in the parameters of a family of models for tables, such as the leaves of LightGBM's trees.
The trial with the greatest validation AUC is chosen; its test AUC is the cell's result.

>>> grid = Grid("digits", (0.1,), ("logistic",), (50, 500), (0, 1), {"logistic": (0.1, 1.0)})
>>> len(grid.cells()), len(grid.trials())
(2, 8)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any, Literal

FULL_BATCH = 0
"""The batch size that stands for all rows at once."""

Parameters = tuple[tuple[str, Any], ...]
"""Names and values of the parameters of a family of models for tables."""


@dataclass(frozen=True, order=True)
class Cell:
    """The trials among which hyper-parameters are chosen."""

    data: str
    imratio: float  # share of positives in subtrain and validation; 0: as in the data
    loss: str
    optimiser: str  # or the family of a model for tables: "linear", "lightgbm", ...
    seed: int


@dataclass(frozen=True, order=True)
class Trial:
    """One training: a cell with a batch size and a learning rate, or with parameters."""

    cell: Cell
    batch: int
    rate: float
    parameters: Parameters = ()  # of a family of models for tables; batch and rate are then 0

    @property
    def name(self) -> str:
        """Return a text that no other trial of the cell has.

        >>> Trial(Cell("digits", 0.1, "square", "sgd", 0), batch=50, rate=0.1).name
        'batch=50 rate=0.1'
        """
        named = self.parameters or (("batch", self.batch), ("rate", self.rate))
        return " ".join(f"{name}={value}" for name, value in named)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Trial:
        """Make a trial from the dictionary that ``dataclasses.asdict`` returns."""
        parameters = tuple((name, value) for name, value in plain.get("parameters", ()))
        return cls(**{**plain, "cell": Cell(**plain["cell"]), "parameters": parameters})


@dataclass(frozen=True)
class TableFile:
    """A user's table: its path, the label column, and which rows and columns are used how."""

    path: str
    label: str
    group: str | None = None
    positive: str | None = None  # the positive label; None: 1, true, yes, or else the rarer one
    drop: tuple[str, ...] = ()  # columns that are not used
    only: tuple[str, ...] = ()  # the columns to learn from; empty: all
    time: str | None = None  # column by which training, validation and test follow each other
    test: str | None = None  # path of another file, whose rows are the test part

    def __post_init__(self) -> None:
        for name in ("drop", "only"):  # lists, if the description comes from a store
            object.__setattr__(self, name, tuple(getattr(self, name)))


@dataclass(frozen=True)
class Settings:
    """Settings that all trials of a store share. A store with other settings is not continued."""

    model: str = "mlp"
    scores: Literal["raw", "sigmoid"] = "raw"
    epochs: int = 20
    protocol: Literal["corrected", "paper"] = "corrected"
    sampler: Literal["shuffle", "stratified"] = "shuffle"
    margin: float | None = None  # None: that of each surrogate
    precision: Literal["float32", "bf16"] = "float32"  # of the network; losses are in float32
    schedule: Literal["constant", "cosine"] = "constant"  # of the rate, epoch by epoch
    warm_start: int = 0  # epochs at the beginning that are trained with the logistic loss
    # Rows of subtrain that are measured after every epoch but the last; 0: all rows.
    subtrain_sample: int = 0
    table: TableFile | None = None
    fingerprint: str = ""  # of the data, so that a store is not continued on other rows

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Settings:
        """Make settings from the dictionary that ``dataclasses.asdict`` returns."""
        table = plain.get("table")
        return cls(**{**plain, "table": table and TableFile(**table)})


@dataclass(frozen=True)
class Grid:
    """All combinations to try. For a fair comparison every loss has equally many rates."""

    data: str
    imratios: tuple[float, ...]
    losses: tuple[str, ...]
    batches: tuple[int, ...]
    seeds: tuple[int, ...]
    rates: dict[str, tuple[float, ...]]  # by "loss/optimiser" if present, else by "loss"
    # By loss; losses that are not here use `default_optimiser`.
    optimisers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # By family of models for tables: the parameters to try, instead of batches and rates.
    spaces: dict[str, tuple[Parameters, ...]] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()  # families that are not tried, with the reasons
    # By (imratio, loss, optimiser): pairs (batch, rate) to try instead of all; see `finalists`.
    chosen: dict[tuple[float, str, str], tuple[tuple[int, float], ...]] = field(
        default_factory=dict
    )

    def cells(self) -> list[Cell]:
        """Return the cells in the order in which they run."""
        return [
            Cell(self.data, imratio, loss, optimiser, seed)
            for imratio, seed, loss in product(self.imratios, self.seeds, self.losses)
            for optimiser in self.optimisers.get(loss, (default_optimiser(loss),))
        ]

    def trials(self) -> list[Trial]:
        """Return every trial, cell by cell."""
        return [trial for cell in self.cells() for trial in self.trials_of(cell)]

    def trials_of(self, cell: Cell) -> list[Trial]:
        """Return the trials of one cell."""
        if cell.optimiser in self.spaces:
            return [Trial(cell, 0, 0.0, parameters) for parameters in self.spaces[cell.optimiser]]
        key = (cell.imratio, cell.loss, cell.optimiser)
        pairs: Iterable[tuple[int, float]] = product(self.batches, self.rates_of(cell))
        return [Trial(cell, batch, float(rate)) for batch, rate in self.chosen.get(key, pairs)]

    def rates_of(self, cell: Cell) -> tuple[float, ...]:
        """Return the learning rates that compete in a cell."""
        return self.rates.get(f"{cell.loss}/{cell.optimiser}") or self.rates[cell.loss]


def default_optimiser(loss: str) -> str:
    """Return the optimiser of a loss if none is given: pesg for aucm, solam for solam, or sgd."""
    return {"aucm": "pesg", "solam": "solam"}.get(loss, "sgd")


@dataclass(frozen=True)
class Record:
    """The result of a trial.

    `history` holds columns of equal length with one entry per epoch: ``epoch`` (0 is before
    training), ``subtrain_loss``, ``subtrain_auc``, ``validation_loss`` and ``validation_auc``.
    The test part is measured at the best epoch only. A diverged trial holds the epochs before the
    divergence, which may still be chosen.
    """

    trial: Trial
    state: Literal["finished", "diverged", "failed"]
    history: dict[str, list[float]]
    best_epoch: int = -1  # the first epoch with the greatest validation AUC; -1: none
    validation_auc: float = float("nan")
    test_auc: float = float("nan")
    # False and true positive rates on the test part, at the best epoch.
    roc: tuple[list[float], list[float]] = ((), ())  # type: ignore[assignment]
    diverged_at: int | None = None  # the first epoch with a score or loss that is not finite
    reason: str = ""  # why it diverged or failed, and what to try
    seconds: float = 0.0
    device: str = "cpu"
    n_one_class: int = 0  # batches that held no (positive, negative) pair
    # What cross-validation chose inside the trial of a table: a penalty or a number of rounds.
    chosen: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings for a store."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Record:
        """Make a record from the dictionary that `to_dict` returns."""
        trial = Trial.from_dict(plain["trial"])
        record = cls(**{**plain, "trial": trial, "roc": tuple(plain["roc"])})
        numbers = (record.validation_auc, record.test_auc, record.best_epoch, record.seconds)
        if (
            record.state not in ("finished", "diverged", "failed")
            or not all(isinstance(number, int | float) for number in numbers)
            or len({len(column) for column in record.history.values()}) > 1
        ):
            raise ValueError("it is no record of a trial")
        return record
