"""LightGBM with its own logistic loss, and with the pair loss of `everypair.boosting`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.experiments.families.family import Family, Fit, Floats

SETTINGS = {
    "learning_rate": 0.1,
    "lambda_l2": 1.0,
    "min_sum_hessian_in_leaf": 1.0,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "feature_fraction": 0.7,
}
"""The same for every loss. The regularisation is the one that `lightgbm_objective` recommends."""

DEFAULTS = (("settings", "default"), ("num_leaves", 31), ("min_data_in_leaf", 20))
"""LightGBM's own defaults instead of `SETTINGS`: without regularisation, all rows and columns in
every tree. They are better on tables with many rows that are easy to separate."""


@dataclass(frozen=True)
class LightgbmScorer:
    """The sum of the first `rounds` trees."""

    booster: Any
    rounds: int

    def __call__(self, X: NDArray[np.float32]) -> Floats:
        """Return one score per row, (n,)."""
        found = self.booster.predict(X, raw_score=True, num_iteration=self.rounds, num_threads=1)
        return np.asarray(found, np.float64)

    def files(self) -> dict[str, bytes]:
        """Return the model in LightGBM's text format."""
        text = self.booster.model_to_string(num_iteration=self.rounds)
        return {"lightgbm.txt": text.encode()}


def load(files: Mapping[str, bytes]) -> LightgbmScorer:
    """Make the scorer from its file."""
    import lightgbm

    booster = lightgbm.Booster(model_str=files["lightgbm.txt"].decode())
    return LightgbmScorer(booster, booster.num_trees())


def fit(task: Fit) -> list[LightgbmScorer]:
    """Train to the largest number of rounds of the path; the others use fewer of the trees."""
    import lightgbm

    from everypair.boosting import lightgbm_objective

    pairs = task.loss == "pairs"
    rows, sizes = task.rows.by_group() if pairs else (task.rows, None)
    parameters = dict(task.parameters)
    common = {} if parameters.pop("settings", "") == "default" else SETTINGS
    settings = {
        **common,
        **parameters,
        "objective": lightgbm_objective(hessian="pairs") if pairs else "binary",
        "seed": task.seed,
        "deterministic": True,
        "force_row_wise": True,
        "feature_pre_filter": False,  # which may leave no feature of a tiny table
        "num_threads": task.threads,
        "verbosity": -1,
    }
    data = lightgbm.Dataset(rows.X, rows.y.astype(np.float32), group=sizes)
    booster = lightgbm.train(settings, data, int(max(task.path)))
    return [LightgbmScorer(booster, int(rounds)) for rounds in task.path]


FAMILY = Family(
    package="lightgbm",
    losses=("logistic", "pairs"),
    space=(
        (("num_leaves", 7), ("min_data_in_leaf", 5)),
        (("num_leaves", 31), ("min_data_in_leaf", 20)),
        DEFAULTS,
    ),
    not_random=(DEFAULTS,),
    path_name="rounds",
    path=(12, 25, 50, 100, 200),
    fit=fit,
    load=load,
    random=True,
)
