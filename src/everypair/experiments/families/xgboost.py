"""XGBoost with its own logistic loss, and with the pair loss of `everypair.boosting`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.experiments.families.family import Family, Fit, Floats

SETTINGS = {"learning_rate": 0.1, "subsample": 0.7, "colsample_bynode": 0.7, "reg_lambda": 1.0}
"""The same for every loss."""


@dataclass(frozen=True)
class XgboostScorer:
    """The sum of the first `rounds` trees."""

    booster: Any
    rounds: int

    def __call__(self, X: NDArray[np.float32]) -> Floats:
        """Return one score per row, (n,)."""
        import xgboost

        options = {"output_margin": True, "iteration_range": (0, self.rounds)}
        return np.asarray(self.booster.predict(xgboost.DMatrix(X), **options), np.float64)

    def files(self) -> dict[str, bytes]:
        """Return the model in XGBoost's JSON format."""
        return {"xgboost.json": bytes(self.booster[: self.rounds].save_raw("json"))}


def load(files: Mapping[str, bytes]) -> XgboostScorer:
    """Make the scorer from its file."""
    import xgboost

    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(files["xgboost.json"]))
    return XgboostScorer(booster, booster.num_boosted_rounds())


def fit(task: Fit) -> list[XgboostScorer]:
    """Train to the largest number of rounds of the path; the others use fewer of the trees."""
    import xgboost

    from everypair.boosting import xgboost_objective

    pairs = task.loss == "pairs"
    rows, sizes = task.rows.by_group() if pairs else (task.rows, None)
    data = xgboost.DMatrix(rows.X, rows.y.astype(np.float32))
    if sizes is not None:
        data.set_group(sizes)
    settings = {**SETTINGS, **task.parameters, "seed": task.seed, "nthread": task.threads}
    settings |= {"base_score": 0.0} if pairs else {"objective": "binary:logistic"}
    objective = xgboost_objective() if pairs else None
    booster = xgboost.train(settings, data, int(max(task.path)), obj=objective)
    return [XgboostScorer(booster, int(rounds)) for rounds in task.path]


FAMILY = Family(
    package="xgboost",
    losses=("logistic", "pairs"),
    space=((("max_depth", 3),), (("max_depth", 6),)),
    path_name="rounds",
    path=(12, 25, 50, 100, 200),
    fit=fit,
    load=load,
    random=True,
)
