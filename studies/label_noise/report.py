"""Write the tables and the plots of docs/label-noise.md from the rows."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from benchmarks import pages
from benchmarks.plot import ASSETS, STYLE
from benchmarks.rows import ROOT
from studies.evidence_report import differs, half_width
from studies.label_noise.losses import LOSSES

PAGE = ROOT / "docs" / "label-noise.md"
BASE = "logistic"
BY_DATA_SET = (0.0, 0.3, 0.4)  # the noise levels for which results on each data set are shown
COLOURS = {
    "logistic": "#555555",
    "weighted logistic": "#aaaaaa",
    "barrier": "#dd8452",
    "weighted barrier": "#c44e52",
    "pair squared hinge": "#7fb2e5",
    "pair logistic": "#0b62c4",
    "pair sigmoid": "#2ca02c",
    "pair barrier": "#8172b3",
}


def fill(folder: Path) -> str:
    """Draw the plots, write the tables between the markers of the page, and return them."""
    paths = sorted(folder.glob("*.csv"))
    results = pd.concat([pd.read_csv(path).assign(data=path.stem) for path in paths])
    texts = []
    for model, rows in results.groupby("model"):
        draw(rows, ASSETS / f"label-noise-{model}.svg")
        texts.append(f"### {str(model).capitalize()} model\n\n{summary(str(model), rows)}")
    text = "\n\n".join(texts) + "\n"
    pages.fill([PAGE], {"label noise": f"\n{text}\n"})
    return text


def summary(model: str, rows: pd.DataFrame) -> str:
    n_data, n_splits = rows["data"].nunique(), rows["split"].nunique()
    parts = [
        f"![AUC against noise](assets/label-noise-{model}.svg)",
        f"Mean clean-test AUC over {n_data} data sets and {n_splits} splits:",
        means(rows, "test"),
        "The same if validation labels *without* flips had chosen rate and number of steps:",
        means(rows, "test_clean_choice"),
        f"Data sets on which a loss wins / ties / loses against `{BASE}`:",
        against(rows, BASE),
        "Data sets on which `pair barrier` wins / ties / loses against the loss of the row:",
        against(rows, "pair barrier", reverse=True),
    ]
    at_edge = (rows["rate"] == rows["rate"].max()).groupby(rows["loss"]).mean()[list(LOSSES)]
    shares = ", ".join(f"`{loss}` {share:.0%}" for loss, share in at_edge.items())
    parts.append(f"How often the largest of the five rates was chosen: {shares}.")
    for share in BY_DATA_SET:
        at = rows[rows["noise"] == share]
        parts += [
            f"Each data set with {share:.0%} flipped labels: AUC of `{BASE}`, and the difference "
            "of the other losses to it, with 95 % intervals. Significant differences are bold:",
            by_data_set(at),
        ]
    return "\n\n".join(parts)


def means(rows: pd.DataFrame, column: str) -> str:
    """Return the mean AUC of each loss at each noise level, the best in bold."""
    found = rows.pivot_table(index="loss", columns="noise", values=column).loc[list(LOSSES)]
    cells = found.map("{:.3f}".format)
    return table(cells.where(cells != cells.max(), "**" + cells + "**"))


def against(rows: pd.DataFrame, reference: str, *, reverse: bool = False) -> str:
    """Count the data sets on which each loss is better, not different, or worse."""
    sign = -1 if reverse else 1
    cells = {}
    for noise, at in rows.groupby("noise"):
        gaps = [gaps_to(each, reference).apply(differs) * sign for _, each in at.groupby("data")]
        verdicts = pd.DataFrame(gaps)
        counts = zip((verdicts > 0).sum(), (verdicts == 0).sum(), (verdicts < 0).sum(), strict=True)
        cells[noise] = pd.Series([" / ".join(map(str, c)) for c in counts], verdicts.columns)
    return table(pd.DataFrame(cells))


def gaps_to(rows: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Return the differences in test AUC to a loss, by split (rows) and loss (columns)."""
    splits = rows.pivot_table(index="split", columns="loss", values="test")[list(LOSSES)]
    return splits.drop(columns=reference).sub(splits[reference], axis=0)


def by_data_set(rows: pd.DataFrame) -> str:
    found = {}
    for data, each in rows.groupby("data"):
        gaps = gaps_to(each, BASE)
        base = each.loc[each["loss"] == BASE, "test"].mean()
        found[data] = {BASE: f"{base:.3f}"} | {loss: interval(gaps[loss]) for loss in gaps}
    cells = pd.DataFrame(found).T
    return table(cells, heading="data")


def interval(gaps: pd.Series) -> str:
    text = f"{gaps.mean():+.3f} ± {half_width(gaps):.3f}"
    return f"**{text}**" if differs(gaps) else text


def table(cells: pd.DataFrame, heading: str = "loss") -> str:
    names = [f"{c:.0%}" if isinstance(c, float) else str(c) for c in cells.columns]
    lines = [f"| {heading} | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(row) + " |" for name, row in cells.iterrows()]
    return "\n".join(lines)


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Draw the mean AUC against the noise, one panel for each data set."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12, 5.6), layout="constrained")
        grid = figure.subplots(2, -(-rows["data"].nunique() // 2), sharex=True, squeeze=False)
        for axes, (data, each) in zip(grid.flat, rows.groupby("data"), strict=False):
            lines = each.pivot_table(index="noise", columns="loss", values="test")
            for loss, colour in COLOURS.items():
                style = "-" if loss.startswith("pair") else "--"
                axes.plot(
                    100 * lines.index,
                    lines[loss],
                    style,
                    color=colour,
                    marker="o",
                    markersize=3,
                    label=loss,
                )
            axes.set_title(data, fontsize=11)
            axes.grid(color="#e6e6e6", linewidth=0.8)
            axes.spines[["top", "right"]].set_visible(False)
        for axes in grid.flat[rows["data"].nunique() :]:
            axes.set_visible(False)
        for axes in grid[-1]:
            axes.set_xlabel("% flipped")
        for axes in grid[:, 0]:
            axes.set_ylabel("clean-test AUC")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
        figure.savefig(path, metadata={"Date": None})
