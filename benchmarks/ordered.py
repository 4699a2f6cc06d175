"""Order of a real target and of survival times: pair objectives beside those of other libraries.

    python -m benchmarks.ordered ranking     # XGBoost: all pairs, sampled pairs, least squares
    python -m benchmarks.ordered survival    # concordance beside Cox, linear and XGBoost

Each prints the rows of a table of docs/rank-by-a-real-target.md or docs/survival.md.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import everypair as ep
from everypair.boosting import xgboost_objective
from everypair.sklearn import PairLinearSurvival

ROUNDS = 200
TREES = {"max_depth": 4, "eta": 0.1, "tree_method": "hist", "nthread": 1}
FEW_TREES = {**TREES, "max_depth": 3, "eta": 0.05}


def ranking(seeds: int = 3) -> None:
    """Print Spearman's correlation on new rows: one query of 4,000 rows, 50 columns."""
    from scipy.stats import spearmanr

    columns = []
    for noise in ("normal", "Student t"):
        found: dict[str, list[float]] = {}
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            X = rng.normal(size=(8000, 50))
            signal = X @ rng.normal(size=50) / np.sqrt(50)
            y = signal + (rng.normal(size=8000) if noise == "normal" else rng.standard_t(1.5, 8000))
            for name, scores in _scores_by_objective(X[:4000], y[:4000], X[4000:]).items():
                found.setdefault(name, []).append(float(spearmanr(scores, y[4000:])[0]))
        columns.append({name: float(np.mean(values)) for name, values in found.items()})
    for name in columns[0]:
        print(f"| {name} | {' | '.join(f'{column[name]:.3f}' for column in columns)} |")


def _scores_by_objective(X: Any, y: Any, new: Any) -> dict[str, Any]:
    """Train XGBoost with each objective on (X, y) and return its scores of new rows."""
    import xgboost as xgb
    from scipy.stats import rankdata

    ranks = rankdata(y)
    plain, query = xgb.DMatrix(X, y), xgb.DMatrix(X, ranks, qid=np.zeros(len(y), int))
    ours = {"base_score": 0.0, **TREES}
    pairwise = {"objective": "rank:pairwise", "lambdarank_pair_method": "mean", **TREES}
    boosters = {
        "all pairs (everypair)": xgb.train(
            ours, plain, ROUNDS, obj=xgboost_objective(pairs="ordered")
        ),
        "least squares on ranks": xgb.train(TREES, xgb.DMatrix(X, ranks / len(y)), ROUNDS),
        "least squares": xgb.train(TREES, plain, ROUNDS),
    }
    for k in (32, 1):
        params = {**pairwise, "lambdarank_num_pair_per_sample": k}
        boosters[f"`rank:pairwise`, {k} sampled per row"] = xgb.train(params, query, ROUNDS)
    return {name: booster.predict(xgb.DMatrix(new)) for name, booster in boosters.items()}


def survival() -> None:
    """Print the concordance of test folds on four data sets of scikit-survival."""
    import pandas as pd
    import xgboost as xgb
    from sklearn.model_selection import RepeatedKFold
    from sklearn.preprocessing import StandardScaler
    from sksurv import datasets
    from sksurv.linear_model import CoxPHSurvivalAnalysis

    loaders = {
        "veterans": datasets.load_veterans_lung_cancer,
        "whas500": datasets.load_whas500,
        "gbsg2": datasets.load_gbsg2,
        "flchain": datasets.load_flchain,
    }
    for name, load in loaders.items():
        table, y = load()
        table = table.drop(columns=[c for c in table.columns if c == "chapter"])  # causes of death
        table = pd.get_dummies(table, drop_first=True).astype(float)
        X = table.fillna(table.median()).to_numpy()
        event, time = y[y.dtype.names[0]], y[y.dtype.names[1]]
        signed = np.where(event, time, -time)
        found = []
        for train, test in RepeatedKFold(n_splits=5, n_repeats=2, random_state=0).split(X):
            scale = StandardScaler().fit(X[train])
            A, B = scale.transform(X[train]), scale.transform(X[test])
            linear = (CoxPHSurvivalAnalysis(alpha=1e-2), PairLinearSurvival(surrogate="logistic"))
            scores = [model.fit(A, y[train]).predict(B) for model in linear]
            rows, new = xgb.DMatrix(A, signed[train]), xgb.DMatrix(B)
            cox = xgb.train({**FEW_TREES, "objective": "survival:cox"}, rows, 100)
            pairs = xgb.train(
                {**FEW_TREES, "base_score": 0.0}, rows, 100, obj=xgboost_objective(pairs="survival")
            )
            scores += [booster.predict(new, output_margin=True) for booster in (cox, pairs)]
            found.append([ep.auc(s, (time[test], event[test]), pairs="survival") for s in scores])
        print(f"| {name} | {len(X)} | {' | '.join(f'{c:.3f}' for c in np.mean(found, axis=0))} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=["ranking", "survival"])
    {"ranking": ranking, "survival": survival}[parser.parse_args().table]()
