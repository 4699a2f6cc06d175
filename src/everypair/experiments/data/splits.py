"""Divide a data set into subtrain, validation and test, and make it imbalanced.

`split_rows` chooses row numbers and checks them; `split` also encodes the rows as tensors.

>>> from everypair.experiments.data import sources
>>> parts = split(sources.load("digits"), imratio=0.1, seed=0, protocol="corrected")
>>> [(int(part.labels.sum()), len(part.labels)) for part in parts.parts().values()]
[(64, 641), (16, 160), (179, 358)]
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everypair.experiments.data._encoder import TableEncoder
from everypair.experiments.data.sources import Dataset
from everypair.experiments.errors import UserError

if TYPE_CHECKING:  # models for tables need the row numbers only, not torch
    import torch

    from everypair.experiments.data.augment import Augmentation

Rows = NDArray[np.int64]
_Columns = tuple[Any, NDArray[np.bool_], NDArray[np.int64] | None]  # inputs, classes, groups

HELD_OUT = 0.2
"""The share of rows for validation, and for test if there is no official test part."""

STEP_BACK = 0.05
"""In splits by time, the share of rows that each further seed leaves out at the end."""


@dataclass(frozen=True)
class Part:
    """The rows of one part, on one device.

    Parameters
    ----------
    inputs : (n, d) float32 or (n, c, h, w) uint8
    labels : (n,) float32, 0 or 1
    groups : (n,) int64, optional
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    groups: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> Part:
        """Return the same rows on another device."""
        groups = None if self.groups is None else self.groups.to(device)
        return Part(self.inputs.to(device), self.labels.to(device), groups)


@dataclass(frozen=True)
class Split:
    """The three parts, the encoder fitted on subtrain, and how images are augmented."""

    subtrain: Part
    validation: Part
    test: Part
    encoder: TableEncoder | None = None
    augmentation: Augmentation = field(default_factory=lambda: _augmentation())

    def parts(self) -> dict[str, Part]:
        """Return the parts by name."""
        return {"subtrain": self.subtrain, "validation": self.validation, "test": self.test}

    def to(self, device: torch.device | str) -> Split:
        """Return the same split on another device."""
        subtrain, validation, test = (part.to(device) for part in self.parts().values())
        return replace(self, subtrain=subtrain, validation=validation, test=test)


class SplitRows(NamedTuple):
    """Row numbers of the three parts; those of an official test part count from 0 on their own."""

    subtrain: Rows
    validation: Rows
    test: Rows


def split(dataset: Dataset, *, imratio: float, seed: int, protocol: str) -> Split:
    """Split a data set; the same arguments give the same rows, in the same order.

    Parameters
    ----------
    dataset : Dataset
        An official test part is used for every seed. Without one, each seed takes out its own test
        part first, so that the spread over seeds includes the choice of test rows. If the rows have
        times, the parts follow each other in time.
    imratio : float
        The share of positives that is left in subtrain and validation; the test part is then
        balanced. 0 leaves both classes as they are. For one seed, the positives of a smaller
        imratio are a subset of those of a larger one.
    seed : int
        Seed of this split; global generators are not used.
    protocol : {"corrected", "paper"}
        "corrected" removes positives and then splits, both classes in proportion. "paper" splits
        regardless of class and then removes positives from each part, and augments the images of
        all three parts, as the authors' code did.

    Raises
    ------
    UserError
        If a part has no (positive, negative) pair (with groups: none inside a group), or the data
        have fewer positives than `imratio` needs.
    """
    chosen = split_rows(dataset, imratio=imratio, seed=seed, protocol=protocol)
    is_table = not isinstance(dataset.inputs, np.ndarray)
    encoder = fit_encoder(dataset, chosen.subtrain) if is_table else None
    columns: _Columns = (dataset.inputs, dataset.positive, dataset.groups)
    subtrain = _part(chosen.subtrain, columns, encoder)
    validation = _part(chosen.validation, columns, encoder)
    if dataset.test_positive is not None:
        columns = (dataset.test_inputs, dataset.test_positive, None)
    test = _part(chosen.test, columns, encoder)
    augmentation = _augmentation(dataset.photographs, dataset.photographs and protocol == "paper")
    return Split(subtrain, validation, test, encoder, augmentation)


def split_rows(dataset: Dataset, *, imratio: float, seed: int, protocol: str) -> SplitRows:
    """Choose the rows of a split without reading them; takes the arguments of `split`."""
    if not 0 <= imratio < 1:
        raise UserError(f"imratio must be a share of positives between 0 and 1; got {imratio}")
    if protocol not in ("corrected", "paper"):
        raise UserError(f"protocol must be 'corrected' or 'paper'; got {protocol!r}")
    corrected = protocol == "corrected"
    own = _Chooser(dataset.positive, dataset.groups, imratio, np.random.default_rng(seed))
    train, test = np.arange(len(dataset.positive)), np.empty(0, np.int64)
    if dataset.groups is not None and not own.has_pair(train):
        raise UserError(f"{dataset.name}: no group has both classes; take another group column")
    if dataset.time is None and dataset.test_positive is None:
        train, test = own.hold_out(train, stratified=corrected)
    if dataset.time is not None:
        train, validation, test = _by_time(dataset.time, seed)
        subtrain, validation = own.unbalance(train), own.unbalance(validation)
    elif corrected:
        subtrain, validation = own.hold_out(own.unbalance(train), stratified=True)
    else:
        subtrain, validation = map(own.unbalance, own.hold_out(train, stratified=False))
    tester = own
    if dataset.test_positive is not None:
        # Seed 0 for every split: an official test part does not depend on the seed.
        tester = _Chooser(dataset.test_positive, None, imratio, np.random.default_rng(0))
        test = np.arange(len(dataset.test_positive))
    test = tester.balance(test)
    parts = {"training": (own, subtrain), "validation": (own, validation), "test": (tester, test)}
    if lacking := [name for name, (chooser, rows) in parts.items() if not chooser.has_pair(rows)]:
        counts = ", ".join(
            f"{name} {chooser.positive[rows].sum()} positives of {len(rows)}"
            for name, (chooser, rows) in parts.items()
        )
        inside = " inside a group" if dataset.groups is not None else ""
        raise UserError(
            f"{dataset.name}{f', imratio {imratio:g}' * bool(imratio)}, seed {seed}: "
            f"{' and '.join(lacking)} would have no (positive, negative) pair{inside} ({counts}); "
            f"try {_advice(dataset, imratio, protocol)}"
        )
    return SplitRows(subtrain, validation, test)


def fit_encoder(dataset: Dataset, rows: NDArray[Any]) -> TableEncoder:
    """Fit the encoder of a table on some of its rows."""
    return (dataset.encoder or TableEncoder()).fit(dataset.inputs.iloc[rows])


def _by_time(time: NDArray[np.float64], seed: int) -> SplitRows:
    """Return parts that follow each other in time.

    Seed 0 uses all rows. Each further seed leaves out another `STEP_BACK` of the rows, the newest
    ones first, so that seeds have different test rows (a rolling origin). Rows of equal time stay
    in one part if that is possible.
    """
    order = np.argsort(time, kind="stable")
    order = order[: round(len(order) * (1 - STEP_BACK * (seed % 10)))]

    def cut(n: int) -> int:  # the first place of the rows with the time of the row at place n
        return int(np.searchsorted(time[order], time[order[n]])) or n

    last = cut(round((1 - HELD_OUT) * len(order)))
    middle = cut(round((1 - HELD_OUT) * last))
    return SplitRows(*map(np.sort, (order[:middle], order[middle:last], order[last:])))


def _advice(dataset: Dataset, imratio: float, protocol: str) -> str:
    """Return the changes that may give every part a pair."""
    grouped = dataset.groups is not None
    helps = {
        "a random split, without --time": dataset.time is not None,
        "a larger imratio": imratio > 0,
        "another seed": grouped or protocol == "paper",
        "protocol=corrected": protocol == "paper",
        "a coarser group column": grouped,
        "more rows of the rarer class": True,
    }
    return " or ".join(advice for advice, applies in helps.items() if applies)


def _augmentation(*options: bool) -> Augmentation:
    from everypair.experiments.data.augment import Augmentation

    return Augmentation(*options)


def _part(rows: Rows, columns: _Columns, encoder: TableEncoder | None) -> Part:
    import torch

    inputs, positive, groups = columns
    chosen = inputs[rows] if encoder is None else encoder.transform(inputs.iloc[rows])
    kind = np.uint8 if chosen.dtype == np.uint8 else np.float32
    return Part(
        torch.from_numpy(np.ascontiguousarray(chosen, kind)),
        torch.from_numpy(positive[rows].astype(np.float32)),
        None if groups is None else torch.from_numpy(groups[rows]),
    )


@dataclass(frozen=True)
class _Chooser:
    """Chooses among row numbers; results are in the order of the data."""

    positive: NDArray[np.bool_]
    groups: NDArray[np.int64] | None
    imratio: float
    generator: np.random.Generator

    def classes(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return the positive and the negative rows."""
        return rows[self.positive[rows]], rows[~self.positive[rows]]

    def has_pair(self, rows: Rows) -> bool:
        """Return whether there is a (positive, negative) pair; with groups, inside one of them."""
        pos, neg = self.classes(rows)
        if self.groups is None:
            return bool(len(pos) and len(neg))
        return bool(np.isin(self.groups[pos], self.groups[neg]).any())

    def unbalance(self, rows: Rows) -> Rows:
        """Remove positives until their share is imratio (paper, section 4)."""
        pos, neg = self.classes(rows)
        order = self.generator.permutation(pos)  # the same for every imratio, so that shares nest
        if not self.imratio:
            return rows
        wanted = round(self.imratio * len(neg) / (1 - self.imratio))
        if wanted > len(pos):
            share = len(pos) / max(1, len(rows))
            raise UserError(
                f"imratio {self.imratio:g} would need {wanted} positives for {len(neg)} negatives, "
                f"but there are {len(pos)} ({share:.2%}), and rows can only be removed; "
                "choose a smaller imratio, or 0 to leave the classes as they are"
            )
        return np.sort(np.concatenate([neg, order[:wanted]]))

    def balance(self, rows: Rows) -> Rows:
        """Drop rows of the larger class until both are equal; imratio 0 keeps all rows."""
        if not self.imratio:
            return rows
        both = [self.generator.permutation(rows) for rows in self.classes(rows)]
        fewest = min(map(len, both))
        return np.sort(np.concatenate([rows[:fewest] for rows in both]))

    def hold_out(self, rows: Rows, *, stratified: bool) -> tuple[Rows, Rows]:
        """Hold out about a fifth of the rows, in whole groups; return the other rows and these."""
        if self.groups is not None:
            held = self._whole_groups(rows, self.groups[rows], stratified)
        else:
            held = np.zeros(len(rows), bool)
            strata = (self.positive[rows], ~self.positive[rows]) if stratified else (held == 0,)
            for stratum in strata:
                places = self.generator.permutation(np.flatnonzero(stratum))
                # Of two or more rows, at least one is held out.
                n = max(round(HELD_OUT * len(places)), min(1, len(places) - 1))
                held[places[:n]] = True
        return rows[~held], rows[held]

    def _whole_groups(self, rows: Rows, groups: NDArray[np.int64], stratified: bool) -> Any:
        """Hold out groups in random order, each if it brings both classes closer to a fifth."""
        _, of_row = np.unique(groups, return_inverse=True)
        positive = self.positive[rows] if stratified else np.ones(len(rows), bool)
        counts = np.stack([np.bincount(of_row, positive), np.bincount(of_row, ~positive)], axis=1)
        totals = counts.sum(axis=0)
        shares = (counts / np.maximum(totals, 1)).tolist()
        missing = [HELD_OUT if total else 0.0 for total in totals]
        held = np.zeros(len(counts), bool)
        for group in self.generator.permutation(len(counts)).tolist():
            both = list(zip(missing, shares[group], strict=True))
            after = [have - share for have, share in both]
            # A class without held-out rows takes its first group even if that is too large.
            first = any(have == HELD_OUT and 0 < share <= 0.5 for have, share in both)
            if first or sum(x * x for x in after) < sum(x * x for x in missing):
                held[group], missing = True, after
        return held[of_row]
