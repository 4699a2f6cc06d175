"""Compare the test AUC of the pair loss with that of the usual objectives on nine tables.

    EVERYPAIR_DATA=folder python -m studies.evidence run [--splits 10] [--rows 5000]
    python -m studies.evidence report      write the summary into pages/tables.md from the rows

Each split is stratified: 60 % training, 20 % validation, 20 % test. All methods of a family fit the
same settings on the training rows. Validation AUC chooses the setting and the number of rounds.

A method on a split is a trial of `everypair.experiments`, whose runner and store are used: `run`
continues where it was stopped. The methods themselves are not those of ``everypair experiment
table``, which has one pair loss for each family: here are also other Hessians, the objectives for
ranking, class weights, a linear SVM, and the boosters' defaults without tuning.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import everypair as ep
from benchmarks.rows import ROOT, write_csv
from everypair.experiments.plan import Cell, Grid, Record, Settings, Trial
from everypair.experiments.search import runner
from everypair.experiments.search import store as stores
from studies import ROWS, evidence_report

STORE = ROOT / "runs" / "evidence.db"
PATH = ROWS / "boosting" / "evidence.csv"
ROUNDS = (5, 10, 20, 30, 50, 75, 100, 150)
# For each booster: its defaults (but for the learning rate), small trees, strong regularisation.
LIGHTGBM: tuple[dict[str, float], ...] = (
    {},
    {"num_leaves": 7, "lambda_l2": 1.0, "min_sum_hessian_in_leaf": 1.0},
    {"num_leaves": 15, "lambda_l2": 10.0, "min_sum_hessian_in_leaf": 1.0},
)
XGBOOST: tuple[dict[str, float], ...] = (
    {},
    {"max_depth": 3, "reg_lambda": 1.0, "min_child_weight": 1.0},
    {"max_depth": 4, "reg_lambda": 10.0, "min_child_weight": 1.0},
)
# The regularisation of XGBoost's defaults, for LightGBM.
REGULARISED = ({"num_leaves": 31, "lambda_l2": 1.0, "min_sum_hessian_in_leaf": 1.0},)
STRENGTHS = (1e-4, 1e-2, 1.0)  # C of scikit-learn, for the linear models
LEARNING_RATE = 0.1
SEED = 1000  # of the first split; the objectives were developed on splits 0 to 3
QUERY = 10_000  # largest number of rows of one query, for LightGBM


class Part(NamedTuple):
    """Features and labels."""

    X: np.ndarray
    y: np.ndarray


# A fitted model: a function of X and a number of rounds that returns scores.
Scorer = Callable[[np.ndarray, int], np.ndarray]


def lightgbm(method: str, train: Part, setting: dict[str, float]) -> Scorer:
    import lightgbm as lgb

    from everypair.boosting import lightgbm_objective

    chosen: dict[str, Any] = {
        "everypair": {"objective": lightgbm_objective()},
        "pairs": {"objective": lightgbm_objective(hessian="pairs")},
        "logloss": {"objective": "binary"},
        "balanced": {"objective": "binary", "is_unbalance": True},
        "ranking": {"objective": "lambdarank"},
    }[method]
    params = {"num_threads": 1, "verbose": -1, "metric": "None", "learning_rate": LEARNING_RATE}
    params |= setting | chosen
    group = None
    if method == "ranking":  # the rows are in random order
        group = [len(part) for part in np.array_split(train.y, -(-len(train.y) // QUERY))]
    booster = lgb.train(params, lgb.Dataset(*train, group=group), ROUNDS[-1])
    return lambda X, rounds: booster.predict(X, raw_score=True, num_iteration=rounds, num_threads=1)


def xgboost(method: str, train: Part, setting: dict[str, float]) -> Scorer:
    import xgboost as xgb

    from everypair.boosting import xgboost_objective

    n_pos = int(train.y.sum())
    weight = (len(train.y) - n_pos) / n_pos
    chosen: dict[str, Any]
    chosen, objective = {
        "everypair": ({"base_score": 0.0}, xgboost_objective()),
        "logistic": ({"base_score": 0.0}, xgboost_objective(hessian="logistic")),
        "logloss": ({"objective": "binary:logistic"}, None),
        "balanced": ({"objective": "binary:logistic", "scale_pos_weight": weight}, None),
        "ranking": ({"objective": "rank:pairwise"}, None),
    }[method]
    params = {"nthread": 1, "verbosity": 0, "learning_rate": LEARNING_RATE} | setting | chosen
    rows = xgb.DMatrix(*train, nthread=1)
    if method == "ranking":
        rows.set_group([len(train.y)])
    booster = xgb.train(params, rows, ROUNDS[-1], obj=objective)
    return lambda X, rounds: booster.predict(
        xgb.DMatrix(X, nthread=1), output_margin=True, iteration_range=(0, rounds)
    )


def linear(method: str, train: Part, strength: float) -> Scorer:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import LinearSVC

    if method == "everypair":
        from everypair.sklearn import PairLinearClassifier

        # The pair loss is a mean, that of scikit-learn a sum over rows: alpha = 1 / (C n).
        alpha = 1.0 / (strength * len(train.y))
        model = PairLinearClassifier(surrogate="squared_hinge", alpha=alpha)
    elif method == "svm":
        model = LinearSVC(C=strength, max_iter=2000)
    else:
        weight = "balanced" if method == "balanced" else None
        model = LogisticRegression(C=strength, class_weight=weight, max_iter=2000)
    fitted = make_pipeline(StandardScaler(), model).fit(*train)
    return lambda X, _: fitted.decision_function(X)


RIVALS = ("logloss", "balanced", "ranking")
FAMILIES: dict[str, tuple[Callable[..., Scorer], tuple[str, ...], tuple, tuple[int, ...]]] = {
    "LightGBM": (lightgbm, ("everypair", "pairs", *RIVALS), LIGHTGBM, ROUNDS),
    "LightGBM-regularised": (lightgbm, ("everypair", "pairs", *RIVALS), REGULARISED, (100,)),
    "XGBoost": (xgboost, ("everypair", "logistic", *RIVALS), XGBOOST, ROUNDS),
    "linear": (linear, ("everypair", "logloss", "balanced", "svm"), STRENGTHS, (1,)),
}


@lru_cache(maxsize=1)
def table(folder: Path, name: str, max_rows: int) -> Part:
    import pandas as pd
    from sklearn.model_selection import train_test_split

    frame = pd.read_parquet(folder / "tabular" / f"{name}.parquet")
    y = (frame.pop("label").to_numpy() > 0).astype(np.int64)
    X = frame.to_numpy(np.float32)
    if len(y) > max_rows:
        X, _, y, _ = train_test_split(X, y, train_size=max_rows, stratify=y, random_state=0)
    return Part(X, y)


@lru_cache(maxsize=1)
def thirds(folder: Path, name: str, max_rows: int, split: int) -> tuple[Part, Part, Part]:
    """Return a stratified split: 60 % training, 20 % validation, 20 % test."""
    from sklearn.model_selection import train_test_split

    seed = SEED + split

    def cut(part: Part, share: float) -> tuple[Part, Part]:
        a, b, ya, yb = train_test_split(*part, test_size=share, stratify=part.y, random_state=seed)
        return Part(a, ya), Part(b, yb)

    rest, test = cut(table(folder, name, max_rows), 0.2)
    train, valid = cut(rest, 0.25)
    return train, valid, test


@dataclass(frozen=True)
class Tuning:
    """Fits a method of a family on a split with all settings; see `runner.run`."""

    folder: Path
    max_rows: int
    width: int = 1

    def group_key(self, trial: Trial) -> object:
        return trial

    def __call__(self, trials: Sequence[Trial], on_epoch: object) -> Iterator[Record]:
        ep.set_num_threads(1)
        warnings.simplefilter("ignore")
        for trial in trials:
            parts = thirds(self.folder, trial.cell.data, self.max_rows, trial.cell.seed)
            yield measure(trial, *parts)


def measure(trial: Trial, train: Part, valid: Part, test: Part) -> Record:
    """Return the AUCs; ``plain`` is the test AUC with the defaults after 100 rounds."""
    fit, _, settings, rounds = FAMILIES[trial.cell.optimiser]
    begin = time.perf_counter()
    tried = []
    plain = math.nan
    for number, setting in enumerate(settings):
        score = fit(trial.cell.loss, train, setting)
        for k in rounds:
            tried.append((ep.auc(np.float64(score(valid.X, k)), valid.y), -number, -k, score))
        if not setting:
            plain = ep.auc(np.float64(score(test.X, 100)), test.y)
    best, number, k, score = max(tried, key=lambda t: t[:3])
    found = ep.auc(np.float64(score(test.X, -k)), test.y)
    chosen = {"setting": -number, "rounds": -k, "plain": plain}
    seconds = time.perf_counter() - begin
    return Record(trial, "finished", {}, 0, best, found, ([], []), seconds=seconds, chosen=chosen)


def grid_of(name: str, families: Sequence[str], splits: int) -> Grid:
    """Return one trial for each split, family and method on a table."""
    methods = dict.fromkeys(method for family in families for method in FAMILIES[family][1])
    of_method = {m: tuple(f for f in families if m in FAMILIES[f][1]) for m in methods}
    spaces = {family: ((("settings", len(FAMILIES[family][2])),),) for family in families}
    return Grid(name, (0.0,), tuple(methods), (), tuple(range(splits)), {}, of_method, spaces)


def run(options: argparse.Namespace) -> None:
    folder = Path(os.environ["EVERYPAIR_DATA"])
    known = json.loads((folder / "manifest.json").read_text())["tabular"]
    smallest_first = sorted(known, key=lambda each: each["rows"] * each["features"])
    names = options.table or [each["name"] for each in smallest_first]
    work = Tuning(folder, options.rows)
    settings = Settings(model="evidence", epochs=0, fingerprint=f"at most {options.rows} rows")
    rows: list[dict[str, object]] = []
    for name in names:
        grid = grid_of(name, options.family or list(FAMILIES), options.splits)
        with stores.open(f"sqlite:///{options.store.absolute()}#{name}", create=True) as store:
            runner.run(grid, settings, store, work=work, workers=options.processes)
            rows += rows_of(name, store.records())
        write_csv(rows, options.output)
        print(f"{name}: {len(grid.trials())} trials", flush=True)


def rows_of(name: str, records: Sequence[Record]) -> list[dict[str, object]]:
    """Return a row for each finished trial on a table, by split, family and method."""
    found = {record.trial.cell: record for record in records if record.state == "finished"}
    splits = sorted({cell.seed for cell in found})
    rows = []
    for split, (family, (_, methods, *_)) in product(splits, FAMILIES.items()):
        for method in methods:
            if (one := found.get(Cell(name, 0.0, method, family, split))) is None:
                continue
            chosen = {key: int(one.chosen[key]) for key in ("setting", "rounds")}
            aucs = {"valid": one.validation_auc, "test": one.test_auc, "plain": one.chosen["plain"]}
            aucs = {key: f"{auc:.5f}" for key, auc in aucs.items()}
            known = {"table": name, "split": split, "family": family, "method": method}
            rows.append(known | chosen | aucs)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser("python -m studies.evidence")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--splits", type=int, default=10)
    running.add_argument(
        "--rows", type=int, default=10**9, help="subsample larger tables to this size"
    )
    running.add_argument("--processes", type=int, default=2)
    running.add_argument("--table", action="append", help="run only this table; repeatable")
    running.add_argument("--family", action="append", choices=FAMILIES, help="run only this family")
    running.add_argument("--store", type=Path, default=STORE)
    running.add_argument("--output", type=Path, default=PATH)
    reporting = commands.add_parser("report")
    reporting.add_argument("--rows", type=Path, default=PATH)
    options = parser.parse_args()
    if options.command == "run":
        run(options)
    else:
        print(evidence_report.fill(options.rows))


if __name__ == "__main__":
    main()
