"""Write the tables of docs/rank-by-a-real-target.md and docs/survival.md from the rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks import pages
from benchmarks.rows import ROOT
from studies import ROWS
from studies.evidence_report import differs, half_width

FOLDER = ROWS / "order"
PAGES = {"ranking": "rank-by-a-real-target.md", "survival": "survival.md"}
OURS = "all pairs (everypair)"
FAMILIES = {"linear": "Linear models", "XGBoost": "XGBoost"}


def fill() -> str:
    """Write each table between the markers of its page, and return all of them."""
    texts = []
    for name, page in PAGES.items():
        text = {"ranking": ranking, "survival": survival}[name](pd.read_csv(FOLDER / f"{name}.csv"))
        pages.fill([ROOT / "docs" / page], {f"order evidence: {name}": f"\n{text}\n\n"})
        texts.append(text)
    return "\n\n".join(texts)


def ranking(rows: pd.DataFrame) -> str:
    """Return Spearman's correlation by objective, and the lead of all pairs in points."""
    lines = []
    for noise, at in rows.groupby("noise", sort=False):
        n = at["seed"].nunique()
        lines += [
            f"**{noise.capitalize()} noise**, mean of {n} data sets:\n",
            "| objective | settings chosen | lead of all pairs | same settings for all "
            "| lead of all pairs |",
            "|---|--:|--:|--:|--:|",
        ]
        by_seed = at.pivot_table(index="seed", columns="method", values=["test", "plain"])
        for method in at["method"].unique():
            cells = []
            for column in ("test", "plain"):
                found = by_seed[column]
                lead = "" if method == OURS else points(found[OURS] - found[method])
                cells += [f"{found[method].mean():.3f}", lead]
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines).strip()


def points(gaps: pd.Series) -> str:
    """Return the mean gap in points with its 95 % interval, for independent data sets."""
    half = stats.t.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / np.sqrt(len(gaps))
    return f"{100 * gaps.mean():+.1f} ± {100 * half:.1f}"


def survival(rows: pd.DataFrame) -> str:
    """Return the concordance of test rows by data set, and the difference to Cox regression."""
    lines = []
    for family, at in rows.groupby("family", sort=False):
        methods = [m for m in at["method"].unique() if m != "Cox"]
        verdicts: dict[str, list[float]] = {m: [] for m in methods}
        lines += [
            f"**{FAMILIES[family]}**, concordance of Cox and the difference of pairs to it:\n",
            "| data set | rows | events | Cox | " + " | ".join(methods) + " |",
            "|---|--:|--:|--:" + "|--:" * len(methods) + "|",
        ]
        for data, each in at.groupby("data", sort=False):
            splits = each.pivot_table(index="split", columns="method", values="test")
            cells = []
            for method in methods:
                gaps = splits[method] - splits["Cox"]
                text = f"{gaps.mean():+.3f} ± {half_width(gaps):.3f}"
                cells.append(f"**{text}**" if differs(gaps) else text)
                verdicts[method].append(differs(gaps))
            first = each.iloc[0]
            numbers = f"{first['rows']} | {first['events']} | {splits['Cox'].mean():.3f}"
            lines.append(f"| {data} | {numbers} | " + " | ".join(cells) + " |")
        counts = [
            f"{method} {sum(v > 0 for v in found)} / {sum(v == 0 for v in found)} / "
            f"{sum(v < 0 for v in found)}"
            for method, found in verdicts.items()
        ]
        lines.append("\nWins / ties / losses against Cox: " + "; ".join(counts) + ".\n")
    return "\n".join(lines).strip()
