"""The parts of a family of models: rows to fit, fitted scorers, and the family itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from everypair.experiments.plan import Parameters

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Encoded rows with two classes.

    Parameters
    ----------
    X : (n, d) float32
        Features of `TableEncoder`: numbers are standardised, levels of text are indicators.
    y : (n,) bool
    groups : (n,) int64, optional
        Only pairs inside a group count.
    validation : (n,) bool, optional
        The rows to validate on. Without them, all rows are cross-validated.
    """

    X: NDArray[np.float32]
    y: NDArray[np.bool_]
    groups: NDArray[np.int64] | None = None
    validation: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: NDArray[Any]) -> Rows:
        """Return some of the rows, without `validation`."""
        groups = None if self.groups is None else self.groups[rows]
        return Rows(self.X[rows], self.y[rows], groups)

    def by_group(self) -> tuple[Rows, NDArray[np.int64] | None]:
        """Return the rows sorted by group, and the sizes of the groups if there are groups."""
        if self.groups is None:
            return self, None
        order = np.argsort(self.groups, kind="stable")
        return self.take(order), np.unique(self.groups, return_counts=True)[1]


class Scorer(Protocol):
    """A fitted model."""

    def __call__(self, X: NDArray[np.float32]) -> Floats:
        """Return one score per row, (n,); larger means more positive."""

    def files(self) -> dict[str, bytes]:
        """Return the contents of the files that hold the model, by name."""


@dataclass(frozen=True)
class Fit:
    """The arguments of a fit: rows, a loss, and parameters.

    `path` holds the values of the family's last parameter, which one fit can try at little cost.
    """

    rows: Rows
    loss: str
    parameters: Mapping[str, Any]
    path: Sequence[float]
    seed: int = 0
    threads: int = 1


@dataclass(frozen=True)
class Family:
    """A kind of model with several losses.

    Attributes
    ----------
    package : str
        The Python package that fits it. If it is not installed, the family is skipped.
    losses : tuple of str
        The losses that are compared unless ``--losses`` names others.
    more_losses : tuple of str
        Further losses that ``--losses`` can name.
    space : tuple of Parameters
        Tried with every loss, each as one trial.
    path_name, path : str, tuple of float
        The parameter that is chosen inside a trial, and its values, the simplest model first.
    fit : callable
        Takes a `Fit` and returns one scorer for each value of its path.
    load : callable
        Takes the files of a scorer and returns the scorer.
    random : bool
        Whether the fit depends on the seed. If so, the mean of several fits is used.
    not_random : tuple of Parameters
        The members of `space` whose fit does not depend on the seed in spite of `random`.
    """

    package: str
    losses: tuple[str, ...]
    space: tuple[Parameters, ...]
    path_name: str
    path: tuple[float, ...]
    fit: Callable[[Fit], Sequence[Scorer]]
    load: Callable[[Mapping[str, bytes]], Scorer]
    more_losses: tuple[str, ...] = ()
    random: bool = False
    not_random: tuple[Parameters, ...] = ()

    @property
    def is_installed(self) -> bool:
        """Return whether the package can be imported."""
        return find_spec(self.package) is not None


@dataclass(frozen=True)
class MeanScorer:
    """The mean of scorers of one family that differ in the seed only."""

    scorers: tuple[Scorer, ...]

    def __call__(self, X: NDArray[np.float32]) -> Floats:
        """Return the mean score of each row, (n,)."""
        return np.asarray(np.mean([scorer(X) for scorer in self.scorers], axis=0), np.float64)


def n_seeds(family: Family, parameters: Mapping[str, Any], n_rows: int) -> int:
    """Return the number of fits whose mean is used: more for small tables, where they vary most."""
    if not family.random or tuple(parameters.items()) in family.not_random:
        return 1
    return 5 if n_rows <= 5_000 else 3 if n_rows <= 12_000 else 1


def fit_mean(family: Family, fit: Fit) -> MeanScorer:
    """Fit one value of the path on all rows, with several seeds if the fit is random."""
    seeds = range(n_seeds(family, fit.parameters, len(fit.rows)))
    return MeanScorer(tuple(family.fit(replace(fit, seed=seed))[0] for seed in seeds))
