"""Write the summary of the rows of `studies.evidence` into pages/tables.md."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks import pages
from benchmarks.rows import ROOT
from everypair.experiments.intervals import resampled_interval

PAGE = ROOT / "studies" / "pages" / "tables.md"
TEST_SHARE = 0.2 / 0.6  # test rows for each training row
OURS = "everypair"
NAMES = {name: f'`hessian="{name}"`' for name in ("logistic", "pairs")}
TITLES = {
    "LightGBM-regularised": "LightGBM: `lambda_l2=1`, `min_sum_hessian_in_leaf=1`, 100 rounds, "
    "nothing tuned"
}


def fill(path: Path) -> str:
    """Write the summary between the markers of the page, and return it."""
    text = summary(pd.read_csv(path))
    if PAGE.exists():
        pages.fill([PAGE], {"evidence": f"\n{text}\n"})
    return text


def summary(results: pd.DataFrame) -> str:
    parts = []
    for family, rows in results.groupby("family", sort=False):
        title = TITLES.get(family, f"{family}: tuned")
        parts.append(f"### {title}\n\n{against(rows, 'test')}\n\n{by_table(rows, 'test')}")
        if rows["plain"].notna().all():
            title = f"### {family}: defaults, 100 rounds, nothing tuned"
            parts.append(f"{title}\n\n{against(rows, 'plain')}\n\n{by_table(rows, 'plain')}")
    return "\n\n".join(parts) + "\n"


def against(rows: pd.DataFrame, column: str) -> str:
    """Return a table row for each method: mean AUC, mean rank, comparison with everypair."""
    means = rows.pivot_table(index="table", columns="method", values=column)
    ranks = means.rank(axis=1, ascending=False).mean()
    lines = [
        "| method | mean test AUC | mean rank | everypair wins / ties / loses | p over tables |",
        "|---|---|---|---|---|",
    ]
    for method in rows["method"].unique():
        row = f"| {NAMES.get(method, method)} | {means[method].mean():.4f} | {ranks[method]:.2f} |"
        if method == OURS:
            lines.append(f"{row} | |")
            continue
        wins, ties, losses, p = compare(rows, method, column)
        lines.append(f"{row} {wins} / {ties} / {losses} | {p:.3f} |")
    return "\n".join(lines)


class Comparison(NamedTuple):
    """On how many tables everypair is better, not significantly different, or worse."""

    wins: int
    ties: int
    losses: int
    p: float  # of Wilcoxon's signed-rank test on the means of the tables


def compare(rows: pd.DataFrame, method: str, column: str) -> Comparison:
    """Compare everypair with a method over the tables of a family."""
    means = rows.pivot_table(index="table", columns="method", values=column)
    gaps = []
    for _, each in rows.groupby("table"):
        splits = each.pivot_table(index="split", columns="method", values=column)
        gaps.append(differs(splits[OURS] - splits[method]))
    counts = (sum(np.sign(gaps) == sign) for sign in (1, 0, -1))
    return Comparison(*counts, stats.wilcoxon(means[OURS], means[method]).pvalue)


def differs(gaps: pd.Series) -> float:
    """Return the mean gap if the corrected resampled t-test finds it significant, else 0."""
    mean = float(gaps.mean())
    return mean if 0.0 < half_width(gaps) < abs(mean) else 0.0


def half_width(gaps: pd.Series) -> float:
    """Return half the width of the 95 % interval of the mean gap; NaN for fewer than two splits."""
    low, high = resampled_interval(gaps.tolist(), TEST_SHARE) or (np.nan, np.nan)
    return float(high - low) / 2.0


def by_table(rows: pd.DataFrame, column: str) -> str:
    """Return the mean test AUC of each method on each table, the best in bold."""
    methods = list(rows["method"].unique())
    means = rows.pivot_table(index="table", columns="method", values=column)[methods]
    lines = [
        "| table | " + " | ".join(NAMES.get(m, m) for m in methods) + " |",
        "|---" * (len(methods) + 1) + "|",
    ]
    for table, found in means.iterrows():
        best = found.round(4).max()
        cells = [f"**{v:.4f}**" if round(v, 4) == best else f"{v:.4f}" for v in found]
        lines.append(f"| {table} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
