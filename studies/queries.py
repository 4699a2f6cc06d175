"""Compare boosting objectives for queries: all ordered pairs, LambdaMART and its relatives.

    python -m studies.queries run       train and write studies/rows/boosting/queries.csv
    python -m studies.queries report    write the table of docs/boosting.md

The data are made by `queries`, because no table with queries is at hand. All contenders have the
same budget: the same trees, three learning rates and at most 200 rounds; rate and round are chosen
on the validation queries, for each metric by that metric. `xgboost_objective` and
`lightgbm_objective` take ``surrogate="logistic"``: RankNet over all pairs of different grades.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import lightgbm as lgb
import numpy as np
import pandas as pd
import xgboost as xgb
from numpy.typing import NDArray
from sklearn.metrics import ndcg_score

import everypair as ep
from benchmarks import pages
from benchmarks.rows import ROOT, environment, write_csv
from benchmarks.tables import markdown
from everypair.boosting import lightgbm_objective, xgboost_objective
from studies import ROWS

PATH = ROWS / "boosting" / "queries.csv"
PAGE = ROOT / "docs" / "boosting.md"
RATES = (0.03, 0.1, 0.3)
ROUNDS, EVERY = 200, 10
LEAVES, THREADS = 15, 1
SEEDS = range(3)
FEATURES = 20
# Rows of a query and queries of the training part; validation and test have as many each.
LENGTHS = {20: 500, 500: 20}
METRICS = ("concordance", "ndcg10")
SHARES = (0.5, 0.3, 0.13, 0.05, 0.02)  # of the grades 0 to 4 in a query, as in web search
OURS = "all pairs, logistic"
LIGHTGBM = {OURS: None, "lambdarank": "lambdarank", "rank_xendcg": "rank_xendcg"}
XGBOOST = {
    OURS: {},
    "rank:pairwise": {"objective": "rank:pairwise"},
    "rank:ndcg": {"objective": "rank:ndcg"},
}


class Queries(NamedTuple):
    """Rows of queries of equal length, one query after the other."""

    X: NDArray[np.float64]
    grades: NDArray[np.int64]
    length: int

    @property
    def codes(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.grades) // self.length), self.length)


def queries(length: int, seed: int) -> tuple[Queries, Queries, Queries]:
    """Return training, validation and test queries.

    A row has 20 normal features; the last five are the same in all rows of a query. Its relevance
    is ``x0 + x1 x2 + |x3| x15 + sin(2 x4) + 1.5 e``, with normal noise e, and the grade is 0 to 4
    by the rank of the relevance inside the query. So x15, which is constant in a query, changes the
    order of its rows, and a level of relevance that all rows of a query share does not count.
    """
    rng = np.random.default_rng([seed, length])
    found = []
    for _ in range(3):
        n = LENGTHS[length] * length
        X = rng.normal(size=(n, FEATURES))
        X[:, 15:] = np.repeat(X[::length, 15:], length, axis=0)
        relevance = X[:, 0] + X[:, 1] * X[:, 2] + np.abs(X[:, 3]) * X[:, 15] + np.sin(2 * X[:, 4])
        relevance += 1.5 * rng.normal(size=n)
        rank = relevance.reshape(-1, length).argsort(1).argsort(1) / length
        grades = np.searchsorted(np.cumsum(SHARES[:-1]), rank.ravel() + 1e-9, side="right")
        found.append(Queries(X, grades, length))
    return found[0], found[1], found[2]


def score(scores: NDArray[np.float64], data: Queries) -> dict[str, float]:
    """Return the mean over the queries of the concordance and of NDCG@10, gains 2^grade - 1."""
    shape = -1, data.length
    gains = (2.0**data.grades - 1.0).reshape(shape)
    concordance = ep.auc(scores, data.grades, pairs="ordered", groups=data.codes, average="groups")
    return {
        "concordance": concordance,
        "ndcg10": float(ndcg_score(gains, scores.reshape(shape), k=10)),
    }


def lightgbm_scores(
    name: str, rate: float, parts: tuple[Queries, ...]
) -> Iterator[list[NDArray[np.float64]]]:
    """Yield the scores of validation and test queries after every tenth round."""
    train = parts[0]
    objective = LIGHTGBM[name] or lightgbm_objective(surrogate="logistic", pairs="ordered")
    params = {
        "objective": objective,
        "learning_rate": rate,
        "num_leaves": LEAVES,
        "lambda_l2": 1.0,
        "num_threads": THREADS,
        "verbose": -1,
        "seed": 0,
    }
    sizes = np.full(len(train.grades) // train.length, train.length)
    booster = lgb.train(params, lgb.Dataset(train.X, train.grades, group=sizes), ROUNDS)
    for rounds in range(EVERY, ROUNDS + 1, EVERY):
        yield [
            np.asarray(booster.predict(p.X, raw_score=True, num_iteration=rounds))
            for p in parts[1:]
        ]


def xgboost_scores(
    name: str, rate: float, parts: tuple[Queries, ...]
) -> Iterator[list[NDArray[np.float64]]]:
    """Yield the scores of validation and test queries after every tenth round."""
    train, *others = (xgb.DMatrix(p.X, p.grades, qid=p.codes) for p in parts)
    params = {
        "learning_rate": rate,
        "grow_policy": "lossguide",
        "max_leaves": LEAVES,
        "max_depth": 0,
        "base_score": 0.0,
        "nthread": THREADS,
        "seed": 0,
        **XGBOOST[name],
    }
    objective = None
    if name == OURS:
        objective = xgboost_objective(surrogate="logistic", pairs="ordered")
    booster = xgb.train(params, train, ROUNDS, obj=objective)
    for rounds in range(EVERY, ROUNDS + 1, EVERY):
        yield [
            booster.predict(rows, output_margin=True, iteration_range=(0, rounds)).astype(float)
            for rows in others
        ]


LIBRARIES = {"LightGBM": (lightgbm_scores, LIGHTGBM), "XGBoost": (xgboost_scores, XGBOOST)}


def run() -> None:
    ep.set_num_threads(THREADS)
    records: list[dict[str, object]] = []
    for length, seed in product(LENGTHS, SEEDS):
        parts = queries(length, seed)
        for library, (scores_of, names) in LIBRARIES.items():
            for name, rate in product(names, RATES):
                cell = {"length": length, "seed": seed, "library": library, "objective": name}
                for step, found in enumerate(scores_of(name, rate, parts), 1):
                    valid, test = (score(s, p) for s, p in zip(found, parts[1:], strict=True))
                    records += [
                        {
                            **cell,
                            "rate": rate,
                            "rounds": step * EVERY,
                            "metric": metric,
                            "valid": round(valid[metric], 5),
                            "test": round(test[metric], 5),
                        }
                        for metric in METRICS
                    ]
    write_csv(records, PATH)
    versions = {"lightgbm": lgb.__version__, "xgboost": xgb.__version__}
    write_csv([{**environment(), **versions}], PATH.with_name("queries_machine.csv"))


def report() -> None:
    rows = pd.read_csv(PATH)
    keys = ["length", "library", "objective", "metric", "seed"]
    chosen = rows.loc[rows.groupby(keys).valid.idxmax()].set_index(keys[:-1]).sort_index()
    body = []
    for length, (library, (_, names)) in product(LENGTHS, LIBRARIES.items()):
        for name in names:
            line = [f"{LENGTHS[length]} of {length} rows", library, name]
            for metric in METRICS:
                test = chosen.loc[(length, library, name, metric)].test
                line.append(f"{test.mean():.3f} ({test.min():.3f} to {test.max():.3f})")
            body.append(line)
    table = markdown(["queries", "library", "objective", "concordance", "NDCG@10"], body)
    pages.fill([PAGE], {"rows: queries": table})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["run", "report"])
    run() if parser.parse_args().what == "run" else report()


if __name__ == "__main__":
    main()
