"""CatBoost with its own logistic loss, and with the pair loss of `everypair.boosting`."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.experiments.errors import UserError
from everypair.experiments.families.family import Family, Fit, Floats

SETTINGS = {"learning_rate": 0.1, "bootstrap_type": "Bernoulli", "subsample": 0.7}
"""The same for every loss."""


@dataclass(frozen=True)
class CatboostScorer:
    """The sum of the first `rounds` trees."""

    booster: Any
    rounds: int

    def __call__(self, X: NDArray[np.float32]) -> Floats:
        """Return one score per row, (n,)."""
        options = {"prediction_type": "RawFormulaVal", "ntree_end": self.rounds, "thread_count": 1}
        return np.asarray(self.booster.predict(X, **options), np.float64).ravel()

    def files(self) -> dict[str, bytes]:
        """Return the model in CatBoost's JSON format."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "catboost.json"
            shortened = self.booster.copy()
            shortened.shrink(self.rounds)
            shortened.save_model(str(path), format="json")
            return {path.name: path.read_bytes()}


def load(files: Mapping[str, bytes]) -> CatboostScorer:
    """Make the scorer from its file."""
    import catboost  # type: ignore[import-untyped]

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catboost.json"
        path.write_bytes(files[path.name])
        booster = catboost.CatBoost()
        booster.load_model(str(path), format="json")
    return CatboostScorer(booster, booster.tree_count_)


def fit(task: Fit) -> list[CatboostScorer]:
    """Train to the largest number of rounds of the path; the others use fewer of the trees."""
    import catboost

    from everypair.boosting import catboost_objective

    labels = task.rows.y.astype(np.int64)
    settings = {
        **SETTINGS,
        **task.parameters,
        "iterations": int(max(task.path)),
        "random_seed": task.seed,
        "thread_count": task.threads,
        "allow_writing_files": False,
        "logging_level": "Silent",
    }
    if task.loss == "pairs":
        if task.rows.groups is not None:
            raise UserError("catboost cannot train the loss pairs with --group; leave it out")
        settings |= catboost_objective(labels).params
    else:
        settings |= {"loss_function": "Logloss"}
    with warnings.catch_warnings():
        # CatBoost tries to compile objectives of its users with numba; ours is fast without it.
        warnings.filterwarnings("ignore", message="Failed to import numba")
        booster = catboost.CatBoost(settings).fit(task.rows.X, labels)
    return [CatboostScorer(booster, int(rounds)) for rounds in task.path]


FAMILY = Family(
    package="catboost",
    losses=("logistic", "pairs"),
    space=((("depth", 4),), (("depth", 6),)),
    path_name="rounds",
    path=(12, 25, 50, 100, 200),
    fit=fit,
    load=load,
    random=True,
)
