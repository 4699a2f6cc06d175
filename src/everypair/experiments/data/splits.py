"""Subtrain, validation and test, made imbalanced as the paper says or as its authors' code did.

>>> from everypair.experiments.data import sources
>>> parts = split(sources.load("digits"), imratio=0.1, seed=0, protocol="corrected")
>>> [(int(part.labels.sum()), len(part.labels)) for part in parts.parts().values()]
[(64, 641), (16, 160), (179, 358)]
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from everypair.experiments.data._encoder import TableEncoder
from everypair.experiments.data.augment import Augmentation
from everypair.experiments.data.sources import Dataset
from everypair.experiments.errors import UserError

__all__ = ["Part", "Split", "split"]

Rows = NDArray[np.int64]

HELD_OUT = 0.2
"""The share of rows for validation; for test as well where there is no official test part."""


@dataclass(frozen=True)
class Part:
    """Rows on one device.

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
    """The three parts, the encoder that was fitted on the first, and how images are augmented."""

    subtrain: Part
    validation: Part
    test: Part
    encoder: TableEncoder | None = None
    augmentation: Augmentation = field(default_factory=Augmentation)

    def parts(self) -> dict[str, Part]:
        """Return the parts by name."""
        return {"subtrain": self.subtrain, "validation": self.validation, "test": self.test}

    def to(self, device: torch.device | str) -> Split:
        """Return the same split on another device."""
        return replace(
            self,
            subtrain=self.subtrain.to(device),
            validation=self.validation.to(device),
            test=self.test.to(device),
        )


def split(dataset: Dataset, *, imratio: float, seed: int, protocol: str) -> Split:
    """Split a data set; the same arguments give the same rows, in the same order.

    Parameters
    ----------
    dataset : Dataset
        Its official test part is the test part of every seed. Without one, each seed takes its own
        out first, so that the spread over seeds includes the choice of test rows.
    imratio : float
        The share of positives to be left in subtrain and validation; the test part is then
        balanced. 0 leaves both classes as they are. For one seed, the positives that a smaller
        share keeps are among those of a larger one.
    seed : int
        Of this split; the global generators are not touched.
    protocol : {"corrected", "paper"}
        "corrected" removes positives and then splits, both classes in proportion. "paper" splits
        regardless of class and then removes positives from each part, and augments the images of
        all three parts, as the authors' code did.

    Raises
    ------
    UserError
        If a part lacks a class (with groups: has no group with both), or the data have fewer
        positives than `imratio` asks for.
    """
    if not 0 <= imratio < 1:
        raise UserError(f"imratio must be a share of positives between 0 and 1; got {imratio}")
    if protocol not in ("corrected", "paper"):
        raise UserError(f"protocol must be 'corrected' or 'paper'; got {protocol!r}")
    corrected = protocol == "corrected"
    rows = _Chooser(dataset.positive, dataset.groups, imratio, np.random.default_rng(seed))
    train, test = np.arange(len(dataset.positive)), np.empty(0, np.int64)
    if dataset.test_positive is None:
        train, test = rows.hold_out(train, stratified=corrected)
    if corrected:
        subtrain, validation = rows.hold_out(rows.unbalance(train), stratified=True)
    else:
        subtrain, validation = map(rows.unbalance, rows.hold_out(train, stratified=False))

    test_inputs, test_positive, test_groups = dataset.inputs, dataset.positive, dataset.groups
    if dataset.test_positive is None:
        test = rows.balance(test)
    else:
        test_inputs, test_positive, test_groups = dataset.test_inputs, dataset.test_positive, None
        # One and the same for every seed, as an official test part is.
        official = _Chooser(test_positive, None, imratio, np.random.default_rng(0))
        test = official.balance(np.arange(len(test_positive)))

    encoder = None
    if not isinstance(dataset.inputs, np.ndarray):
        encoder = (dataset.encoder or TableEncoder()).fit(dataset.inputs.iloc[subtrain])
    own = (dataset.inputs, dataset.positive, dataset.groups, encoder)
    made = Split(
        subtrain=_part(subtrain, *own),
        validation=_part(validation, *own),
        test=_part(test, test_inputs, test_positive, test_groups, encoder),
        encoder=encoder,
        augmentation=Augmentation(dataset.photographs, dataset.photographs and not corrected),
    )
    _refuse_one_class(made, dataset.name, imratio, seed, protocol)
    return made


def _part(
    rows: Rows,
    inputs: Any,
    positive: NDArray[np.bool_],
    groups: NDArray[np.int64] | None,
    encoder: TableEncoder | None,
) -> Part:
    chosen = inputs[rows] if encoder is None else encoder.transform(inputs.iloc[rows])
    kind = np.uint8 if chosen.dtype == np.uint8 else np.float32
    return Part(
        torch.from_numpy(np.ascontiguousarray(chosen, kind)),
        torch.from_numpy(positive[rows].astype(np.float32)),
        None if groups is None else torch.from_numpy(groups[rows]),
    )


@dataclass(frozen=True)
class _Chooser:
    """Chooses among row numbers; its results are in the order of the data."""

    positive: NDArray[np.bool_]
    groups: NDArray[np.int64] | None
    imratio: float
    generator: np.random.Generator

    def classes(self, rows: Rows) -> tuple[Rows, Rows]:
        return rows[self.positive[rows]], rows[~self.positive[rows]]

    def unbalance(self, rows: Rows) -> Rows:
        """Remove positives until their share is imratio (paper, section 4)."""
        pos, neg = self.classes(rows)
        order = self.generator.permutation(pos)  # drawn first: smaller shares are nested in larger
        if not self.imratio:
            return rows
        wanted = round(self.imratio * len(neg) / (1 - self.imratio))
        if wanted > len(pos):
            share = len(pos) / max(1, len(rows))
            raise UserError(
                f"imratio {self.imratio:g} would need {wanted} positives for {len(neg)} negatives, "
                f"but there are {len(pos)} ({share:.2%}), and positives can only be removed; "
                "choose a smaller imratio, or 0 to leave the classes as they are"
            )
        return np.sort(np.concatenate([neg, order[:wanted]]))

    def balance(self, rows: Rows) -> Rows:
        """Drop rows of the larger class until both are equal; imratio 0 leaves them alone."""
        if not self.imratio:
            return rows
        both = [self.generator.permutation(rows) for rows in self.classes(rows)]
        fewest = min(map(len, both))
        return np.sort(np.concatenate([rows[:fewest] for rows in both]))

    def hold_out(self, rows: Rows, *, stratified: bool) -> tuple[Rows, Rows]:
        """Return the rows that stay and about a fifth of them, held out; groups stay whole."""
        if self.groups is not None:
            held = self._whole_groups(rows, self.groups[rows], stratified)
        else:
            held = np.zeros(len(rows), bool)
            strata = (self.positive[rows], ~self.positive[rows]) if stratified else (held == 0,)
            for stratum in strata:
                places = self.generator.permutation(np.flatnonzero(stratum))
                # Two rows of a class suffice for one on either side.
                n = max(round(HELD_OUT * len(places)), min(1, len(places) - 1))
                held[places[:n]] = True
        return rows[~held], rows[held]

    def _whole_groups(self, rows: Rows, groups: NDArray[np.int64], stratified: bool) -> Any:
        """Take groups in random order, each if it brings the held-out counts nearer to a fifth."""
        _, of_row = np.unique(groups, return_inverse=True)
        positive = self.positive[rows] if stratified else np.ones(len(rows), bool)
        counts = np.stack([np.bincount(of_row, positive), np.bincount(of_row, ~positive)], axis=1)
        totals = counts.sum(axis=0)
        shares = (counts / np.maximum(totals, 1)).tolist()
        missing = [HELD_OUT if total else 0.0 for total in totals]
        held = np.zeros(len(counts), bool)
        for group in self.generator.permutation(len(counts)).tolist():
            after = [have - share for have, share in zip(missing, shares[group], strict=True)]
            # A class that has none yet takes its first group even if that is more than its part.
            first = any(
                have == HELD_OUT and 0 < share <= 0.5
                for have, share in zip(missing, shares[group], strict=True)
            )
            if first or sum(x * x for x in after) < sum(x * x for x in missing):
                held[group], missing = True, after
        return held[of_row]


def _refuse_one_class(made: Split, name: str, imratio: float, seed: int, protocol: str) -> None:
    """Raise if some part has no pair to compare, with the counts of all."""
    lacking = [part_name for part_name, part in made.parts().items() if not _has_pairs(part)]
    if not lacking:
        return
    counts = ", ".join(
        f"{part_name} {int(part.labels.sum())} positives of {len(part)}"
        for part_name, part in made.parts().items()
    )
    grouped = made.subtrain.groups is not None
    by_chance = grouped or protocol == "paper"
    advice = {
        "a larger imratio": imratio > 0,
        "another seed": by_chance,
        "protocol=corrected": protocol == "paper",
        "a coarser group column": grouped,
        "more rows of the rarer class": True,
    }
    raise UserError(
        f"{name}, imratio {imratio:g}, seed {seed}, protocol {protocol}: {' and '.join(lacking)} "
        f"would have no (positive, negative) pair{' inside a group' * grouped} ({counts}); "
        f"try {' or '.join(what for what, helps in advice.items() if helps)}"
    )


def _has_pairs(part: Part) -> bool:
    groups = torch.zeros(len(part), dtype=torch.int64) if part.groups is None else part.groups
    positive = part.labels > 0
    return bool(torch.isin(groups[positive], groups[~positive]).any())
