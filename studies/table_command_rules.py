"""Compare rules that make one model of all trials on a table: the evidence for `blend_weights`.

    EVERYPAIR_DATA=... python -m studies.table_command_rules score     # hours
    python -m studies.table_command_rules compare

``score`` divides each table into 70 % and 30 %, runs all trials of ``everypair experiment table``
on the 70 %, and keeps their validation scores and their scores of the 30 % in a folder. ``compare``
applies every rule to these scores and writes studies/rows/table/rules.csv: the AUC of each rule
on the 30 %, and those of the models of `table_command.rivals`. Tables with more rows are sampled.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

import everypair as ep
from studies import ROWS, table_command

FILE = ROWS / "table" / "rules.csv"
STATES = (700, 701)  # of the splits; other than those that table_command judges
MOST_ROWS = 6000
TABLES = tuple(name for name in table_command.DESIGN if name != "wine")
DEFAULTS = "settings=default"  # in the name of the trials of LightGBM at its defaults
Arrays = Mapping[str, np.ndarray]


def made_up(name: str) -> pd.DataFrame:
    """Return a made-up table: clusters, products and squares, noise, heavy tails, or steps."""
    from sklearn.datasets import make_classification

    rng = np.random.default_rng(sum(map(ord, name)))
    if name == "clusters":
        X, y = make_classification(
            4000, 20, n_informative=8, n_clusters_per_class=4, flip_y=0.04, weights=[0.9],
            random_state=1,
        )  # fmt: skip
        return pd.DataFrame(X).add_prefix("f").assign(label=y)
    if name == "products":
        X = rng.normal(size=(6000, 10))
        s = 2 * np.sin(2 * X[:, 0] * X[:, 1]) + X[:, 2] ** 2 + X[:, 3] + 0.5 * X[:, 4]
        s, share = s + rng.normal(size=6000), 0.95
    elif name == "noise":
        X = rng.normal(size=(1500, 100))
        s, share = X[:, :15] @ rng.normal(size=15) + 2 * rng.normal(size=1500), 0.8
    elif name == "tails":
        X = np.exp(1.3 * rng.normal(size=(5000, 12)))
        s = np.log(X[:, 0]) * np.sign(np.log(X[:, 1])) + np.log(X[:, 2]) - 0.3 * (X[:, 3] > 2)
        s, share = s + rng.logistic(size=5000), 0.9
    else:
        X = rng.uniform(size=(5000, 15))
        s = 1.0 * (X[:, 0] > 0.5) * (X[:, 1] > 0.3) + 1.0 * (X[:, 2] < 0.6) * (X[:, 3] > 0.4)
        s, share = s + (X[:, 4] > 0.7) + 0.15 * rng.normal(size=5000), 0.8
    return pd.DataFrame(X).add_prefix("f").assign(label=(s > np.quantile(s, share)).astype(int))


MADE_UP = ("clusters", "products", "noise", "tails", "steps")


def score(name: str, state: int) -> dict[str, np.ndarray]:
    """Return the validation and test scores of all trials, labels, and the rivals' test AUC."""
    from sklearn.model_selection import train_test_split

    from everypair.experiments.contenders import cross_validation, parts, ranking
    from everypair.experiments.data import sources
    from everypair.experiments.families import FAMILIES, Fit, fit_mean, grid_of
    from everypair.experiments.plan import TableFile

    table = made_up(name) if name in MADE_UP else table_command.load(name)
    if len(table) > MOST_ROWS:
        table = table.sample(MOST_ROWS, random_state=state).reset_index(drop=True)
    split = {"test_size": 0.3, "stratify": table["label"], "random_state": state}
    train, test = train_test_split(table, **split)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "train.parquet"
        train.to_parquet(file, index=False)
        dataset = sources.load("table", table=TableFile(str(file), "label"))
    part, (encoder, rows) = parts.parts_of(dataset, 0), parts.all_rows(dataset)
    X, folds = encoder.transform(test.drop(columns="label")), parts.folds(part.train, 0)
    found = {
        "y": ranking.held_out_classes(part.train, 0),
        "ends": np.cumsum([len(held_out) for _, held_out in folds])[:-1],
        "y_test": test["label"].to_numpy(bool),
    }
    for trial in grid_of((), (), (0,)).trials():
        record, scores = cross_validation.run(trial, part)
        family, given = FAMILIES[trial.cell.optimiser], dict(trial.parameters)
        fit = Fit(rows, trial.cell.loss, given, (record.chosen[family.path_name],))
        key = f"{trial.cell.optimiser}|{trial.cell.loss}|{trial.name}"
        found[f"validation|{key}"], found[f"test|{key}"] = (
            scores.validation,
            fit_mean(family, fit)(X),
        )
    for method, scores in table_command.rivals(train, test).items():
        found[f"rival|{method}"] = np.array(ep.auc(scores, found["y_test"]))
    return found


def rules(found: Arrays, *, defaults: bool) -> dict[str, float]:
    """Return the test AUC of every rule; `defaults` includes LightGBM at its defaults."""
    from everypair.experiments.contenders import blend
    from everypair.experiments.contenders.calibration import calibrate

    labels = np.split(found["y"], found["ends"])

    def auc(scores: np.ndarray) -> float:
        return float(np.mean(list(map(ep.auc, np.split(scores, found["ends"]), labels))))

    keys = [name[11:] for name in found if name.startswith("validation|")]
    keys = [key for key in keys if defaults or DEFAULTS not in key]
    curves = [calibrate(found[f"validation|{key}"], found["y"]) for key in keys]
    odds, test = (
        np.stack(
            [
                curve.log_odds(found[f"{part}|{key}"])
                for key, curve in zip(keys, curves, strict=True)
            ]
        )
        for part in ("validation", "test")
    )
    alone = np.array([auc(scores) for scores in odds])
    names = [key.rpartition("|")[0] for key in keys]
    best = [
        max(np.flatnonzero(np.array(names) == one), key=lambda i: alone[i]) for one in set(names)
    ]
    families = [names[i].partition("|")[0] for i in best]
    equal = np.zeros(len(keys))
    equal[best] = [1 / families.count(family) for family in families]
    greedy = np.bincount(list(blend.selection(odds, auc, range(len(keys)))), minlength=len(keys))
    weights = {
        "best contender": alone == alone.max(),
        "families equal": equal,
        "greedy": greedy,
        "bagged greedy": blend.blend_weights(odds, auc),
    }
    return {rule: ep.auc(found_by @ test, found["y_test"]) for rule, found_by in weights.items()}


def compare(folder: Path) -> pd.DataFrame:
    """Return one row for each table, state and rule."""
    rows = []
    for file in sorted(folder.glob("*.npz")):
        name, _, state = file.stem.rpartition("_")
        with np.load(file) as arrays:
            found = dict(arrays)
        aucs = {k[6:]: float(v) for k, v in found.items() if k.startswith("rival|")}
        aucs |= {f"{rule}, without defaults": v for rule, v in rules(found, defaults=False).items()}
        aucs |= rules(found, defaults=True)
        known = {"table": name, "state": int(state), "positives": int(found["y_test"].sum())}
        rows += [{**known, "rule": rule, "auc": auc} for rule, auc in aucs.items()]
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=("score", "compare"))
    parser.add_argument("--folder", type=Path, default=Path("build/table_scores"))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.task == "score":
        for state in STATES:
            for name in (*TABLES, *MADE_UP):
                if not (file := given.folder / f"{name}_{state}.npz").exists():
                    np.savez_compressed(file, **score(name, state))
        return
    rows = compare(given.folder)
    rows.to_csv(FILE, index=False, float_format="%.6f")
    by_table = rows.groupby(["table", "rule"], sort=False)["auc"].mean().unstack(sort=False)
    print(by_table.T.assign(mean=by_table.mean()).round(4).to_string())


if __name__ == "__main__":
    main()
