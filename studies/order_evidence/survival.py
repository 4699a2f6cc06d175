"""Survival times: concordance of pair losses beside Cox regression, on real data.

Each split has 60 % training, 20 % validation and 20 % test rows, with equal shares of events. All
methods of a family try the same number of settings. The concordance of validation rows chooses;
that of test rows counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

import everypair as ep
from everypair.boosting import xgboost_objective
from everypair.sklearn import PairLinearSurvival

# The loaders of sksurv.datasets, and the columns that are left out.
DATA = {
    "veterans": ("load_veterans_lung_cancer", ()),
    "breast_cancer": ("load_breast_cancer", ()),
    "whas500": ("load_whas500", ()),
    "gbsg2": ("load_gbsg2", ()),
    "aids": ("load_aids", ()),
    "flchain": ("load_flchain", ("chapter",)),  # the cause of death
}
SPLITS = 10
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # penalties of linear models, relative to a mean loss
ROUNDS = (25, 50, 100, 200)
TREES = tuple({"eta": eta, "max_depth": depth} for eta, depth in product((0.03, 0.1), (2, 4)))
FAMILIES = {
    "linear": ("Cox", "pairs, squared hinge", "pairs, logistic"),
    "XGBoost": ("Cox", "pairs"),
}


@dataclass(frozen=True)
class Result:
    """The concordance of one method on one split."""

    data: str
    rows: int
    events: int
    split: int
    family: str
    method: str
    setting: int
    rounds: int
    valid: float
    test: float


class Part(NamedTuple):
    """Features, and scikit-survival's labels."""

    X: np.ndarray
    y: np.ndarray

    @property
    def event(self) -> np.ndarray:
        return self.y[self.y.dtype.names[0]]

    @property
    def signed(self) -> np.ndarray:
        """Times that are negative where they are censored, as XGBoost codes them."""
        time = self.y[self.y.dtype.names[1]]
        return np.where(self.event, time, -time)


@lru_cache(maxsize=1)
def table(name: str) -> Part:
    """Return a data set, with categories as indicators and missing values as medians."""
    import pandas as pd
    from sksurv import datasets

    loader, dropped = DATA[name]
    frame, y = getattr(datasets, loader)()
    frame = pd.get_dummies(frame.drop(columns=list(dropped)), drop_first=True).astype(float)
    return Part(frame.fillna(frame.median()).to_numpy(), y)


def parts_of(name: str, split: int) -> tuple[Part, Part, Part]:
    """Return training, validation and test rows; features are standardised by the first."""
    from sklearn.model_selection import train_test_split

    rows = table(name)

    def cut(chosen: np.ndarray, share: float) -> list[np.ndarray]:
        return train_test_split(
            chosen, test_size=share, stratify=rows.event[chosen], random_state=split
        )

    rest, test = cut(np.arange(len(rows.y)), 0.2)
    train, valid = cut(rest, 0.25)
    centre, spread = rows.X[train].mean(0), rows.X[train].std(0)
    X = (rows.X - centre) / np.where(spread > 0, spread, 1)
    return Part(X[train], rows.y[train]), Part(X[valid], rows.y[valid]), Part(X[test], rows.y[test])


# A fitted model: a function of X and a number of rounds that returns risks.
Scorer = Callable[[np.ndarray, int], np.ndarray]


def linear(method: str, train: Part, strength: float) -> Scorer:
    from sksurv.linear_model import CoxPHSurvivalAnalysis

    if method == "Cox":  # its loss is a sum over rows
        model: Any = CoxPHSurvivalAnalysis(alpha=strength * len(train.y))
    else:
        surrogate = "logistic" if "logistic" in method else "squared_hinge"
        model = PairLinearSurvival(surrogate=surrogate, alpha=strength)
    model.fit(train.X, train.y)
    return lambda X, _: model.predict(X)


def trees(method: str, train: Part, setting: dict[str, Any]) -> Scorer:
    import xgboost as xgb

    params = {"tree_method": "hist", "nthread": 1, **setting}
    params |= {"objective": "survival:cox"} if method == "Cox" else {"base_score": 0.0}
    objective = None if method == "Cox" else xgboost_objective(pairs="survival")
    booster = xgb.train(params, xgb.DMatrix(train.X, train.signed), ROUNDS[-1], obj=objective)
    return lambda X, rounds: booster.predict(
        xgb.DMatrix(X), output_margin=True, iteration_range=(0, rounds)
    )


def measure(name: str, split: int, family: str, method: str) -> Result:
    """Return the result of the setting that validation rows choose."""
    train, valid, test = parts_of(name, split)
    fit: Callable[..., Scorer] = linear if family == "linear" else trees
    settings: tuple[Any, ...] = STRENGTHS if family == "linear" else TREES
    n, events = len(table(name).y), int(table(name).event.sum())
    found = []
    for i, setting in enumerate(settings):
        scorer = fit(method, train, setting)
        for rounds in (1,) if family == "linear" else ROUNDS:
            values = [
                ep.auc(scorer(part.X, rounds), part.y, pairs="survival") for part in (valid, test)
            ]
            found.append(Result(name, n, events, split, family, method, i, rounds, *values))
    return max(found, key=lambda result: result.valid)


def run() -> Iterator[Result]:
    ep.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, split in product(DATA, range(SPLITS)):
        for family, methods in FAMILIES.items():
            for method in methods:
                yield measure(name, split, family, method)
