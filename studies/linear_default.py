"""Compare surrogates as the default of PairLinearClassifier, on tables with and without outliers.

    EVERYPAIR_DATA=folder python -m studies.linear_default run [--splits 5] [--rows 5000]
    python -m studies.linear_default run --file my.csv --label y --out rows.csv    your table
    python -m studies.linear_default report     write the summary into docs/sklearn.md

Each split is stratified: 70 % training, 30 % test. Columns are standardised and not clipped. Every
surrogate is fitted with three fixed alphas, and with the one that PairLinearClassifierCV chooses.
The made-up tables have the same signal and tails of different weight.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import everypair as ep
from benchmarks import pages
from benchmarks.rows import ROOT, write_csv
from everypair.sklearn import PairLinearClassifier, PairLinearClassifierCV
from studies import ROWS

PATH = ROWS / "sklearn" / "default_surrogate.csv"
PAGE = ROOT / "docs" / "sklearn.md"
SURROGATES = ("squared_hinge", "huber_hinge", "linear_hinge", "logistic")
FIXED = (1e-4, 1e-3, 1e-2, 3e-2, 1e-1)
ALPHAS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
REFERENCE = "LogisticRegression(balanced)"
DEFAULT = "0.01"
NAMES = {"shared": "tables", "tails": "made-up tables"}
Table = tuple[str, np.ndarray, np.ndarray]  # name, columns, whether a row is positive


@dataclass(frozen=True)
class Result:
    """The test AUC of one surrogate on one split."""

    table: str
    kind: str  # "shared", "tails" or "file"
    split: int
    method: str
    alpha: str  # a number, or "chosen" by cross-validation
    test: float


def shared(rows: int) -> Iterator[Table]:
    """Yield the shared tables, with at most this many rows."""
    for path in sorted(Path(os.environ["EVERYPAIR_DATA"], "tabular").glob("*.parquet")):
        frame = pd.read_parquet(path).sample(frac=1.0, random_state=0)[:rows]
        y = (frame.pop("label") > 0).to_numpy()
        yield path.stem, frame.to_numpy(float), y
    cancer = load_breast_cancer()
    yield "breast_cancer", cancer.data, cancer.target == 0


def made_up(n: int = 10_000, columns: int = 10) -> Iterator[Table]:
    """Yield one table under tails of different weight: 5 % positives, a linear signal plus noise.

    Each column is an increasing function of a normal one, so its order is the same in all tables.
    """
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((n, columns))
    logit = Z @ np.linspace(1.0, 0.1, columns) + rng.logistic(size=n)
    y = logit > np.quantile(logit, 0.95)
    yield "normal", Z, y
    for freedom in (3.0, 1.5, 1.0):
        yield f"Student's t, {freedom:g} degrees", stats.t.ppf(stats.norm.cdf(Z), freedom), y
    yield "lognormal amounts", np.exp(1.5 * Z), y
    yield "1 % typing errors", np.where(rng.random(Z.shape) < 0.01, 1000.0 * Z, Z), y
    counts = rng.poisson(np.exp(0.8 * Z)).astype(float)
    for share, coded in ((0.002, 3), (0.005, 5)):
        unknown = rng.random(n) < share
        yield (
            f"counts, 98 for unknown: {share:.1%} of the rows, {coded} columns",
            np.where(unknown[:, None] & (np.arange(columns) < coded), 98.0, counts),
            y,
        )


def file_table(path: Path, label: str, rows: int) -> Table:
    """Return the numeric columns of a CSV file, with the median for missing values."""
    frame = pd.read_csv(path).sample(frac=1.0, random_state=0)[:rows]
    X = frame.drop(columns=label).select_dtypes("number")
    return path.stem, X.fillna(X.median()).to_numpy(float), (frame[label] > 0).to_numpy()


def results(table: Table, kind: str, split: int) -> Iterator[Result]:
    """Fit every method on one split of a table."""
    name, X, y = table
    parts = train_test_split(X, y, test_size=0.3, stratify=y, random_state=split)
    X_train, X_test, y_train, y_test = parts
    reference = LogisticRegression(class_weight="balanced", max_iter=5000)
    models: dict[tuple[str, str], Any] = {(REFERENCE, "C = 1"): reference}
    for surrogate in SURROGATES:
        for alpha in FIXED:
            model = PairLinearClassifier(surrogate=surrogate, alpha=alpha)
            models[surrogate, f"{alpha:g}"] = model
        models[surrogate, "chosen"] = PairLinearClassifierCV(
            surrogate=surrogate, alphas=ALPHAS, cv=3, tol=1e-4
        )
    for (method, alpha), model in models.items():
        fitted = make_pipeline(StandardScaler(), model).fit(X_train, y_train)
        auc = ep.auc(fitted.decision_function(X_test), y_test)
        yield Result(name, kind, split, method, alpha, round(auc, 6))


def run(arguments: argparse.Namespace) -> None:
    if arguments.file:
        tables = [("file", file_table(arguments.file, arguments.label, arguments.rows))]
    else:
        tables = [("shared", table) for table in shared(arguments.rows)]
        tables += [("tails", table) for table in made_up()]
    found: list[Result] = []
    for kind, table in tables:
        for split in range(arguments.splits):
            found += results(table, kind, split)
        rows = pd.DataFrame(map(asdict, found))
        rows = rows[rows["table"] == table[0]]
        print(table[0], table[1].shape)
        print(rows.pivot_table(index="method", columns="alpha", values="test").round(4), flush=True)
        write_csv([asdict(result) for result in found], arguments.out or PATH)


def summary(rows: pd.DataFrame) -> str:
    """Return the mean test AUC over the tables of a kind by alpha, and then that of each table."""
    names = {m: f"`{m}`" for m in (*SURROGATES, REFERENCE)}
    lines = ["| tables | alpha | " + " | ".join(names.values()) + " |"]
    lines.append("|---" * (len(names) + 2) + "|")
    for kind, title in NAMES.items():
        some = rows[rows["kind"] == kind]
        n = some["table"].nunique()
        reference = some.loc[some["method"] == REFERENCE, "test"].mean()
        means = some.pivot_table(index="method", columns="alpha", values="test")
        for alpha in (*(f"{alpha:g}" for alpha in FIXED), "chosen"):
            found = pd.Series({m: means.loc[m, alpha] for m in SURROGATES} | {REFERENCE: reference})
            lines.append(_line(f"{n} {title} | {alpha}", found))
    lines += ["", f"| table, alpha {DEFAULT} | " + " | ".join(names.values()) + " |"]
    lines.append("|---" * (len(names) + 1) + "|")
    used = rows[(rows["alpha"] == DEFAULT) | (rows["method"] == REFERENCE)]
    for table, found in used.groupby("table", sort=False):
        lines.append(_line(str(table), found.groupby("method")["test"].mean()[list(names)]))
    return "\n".join(lines) + "\n"


def _line(name: str, found: pd.Series) -> str:
    best = found.round(3).max()
    cells = [f"**{value:.3f}**" if round(value, 3) == best else f"{value:.3f}" for value in found]
    return f"| {name} | " + " | ".join(cells) + " |"


def report() -> None:
    text = summary(pd.read_csv(PATH, dtype={"alpha": str}))
    pages.fill([PAGE], {"surrogates": f"\n{text}\n"})
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("run", "report"))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--label")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.command == "run":
        run(arguments)
    else:
        report()


if __name__ == "__main__":
    main()
