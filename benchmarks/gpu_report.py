"""Plot and table of the loss on a GPU, from rows only.

python -m benchmarks.gpu_report
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.rows import ROOT

ROWS = ROOT / "benchmarks" / "rows" / "gpu" / "loss_and_grad.csv"
PICTURE = ROOT / "docs" / "assets" / "gpu.svg"
PAGE = ROOT / "docs" / "performance.md"
STYLES = {"AUCM": ("AUCM", "#8172b3"), "BCE": ("torch BCE", "#555555"),
          "everypair": ("everypair", "#0b62c4")}  # fmt: skip
# Scores and labels are read twice and the gradient is written once; copies were seen at 4.3 TB/s.
FLOOR_MS_A_ROW = 20 / 4.3e12 * 1e3


def read() -> list[dict[str, str]]:
    with ROWS.open(newline="") as file:
        return list(csv.DictReader(file))


def draw(rows: list[dict[str, str]], path: Path) -> None:
    mpl.rcParams.update({"svg.hashsalt": "everypair", "font.size": 10})
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, mode, title in zip(
        panels, ("eager", "graph"), ("called from Python", "replay of a CUDA graph"), strict=True
    ):
        for name, (label, colour) in STYLES.items():
            line = [
                (int(row["n"]), float(row["median_ms"]))
                for row in rows
                if (row["contender"], row["mode"], row["positives"]) == (name, mode, "0.01")
            ]
            axes.plot(*zip(*line, strict=True), color=colour, marker="o", label=label)
        sizes = sorted({int(row["n"]) for row in rows})
        axes.plot(sizes, [n * FLOOR_MS_A_ROW for n in sizes], "k:", label="floor: memory traffic")
        axes.set(
            xscale="log", yscale="log", xlabel="rows in the batch", title=title, ylim=(2e-3, 20)
        )
        axes.grid(color="#e6e6e6")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("milliseconds, forward and backward")
    panels[1].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def table(rows: list[dict[str, str]]) -> str:
    ours = {
        (row["mode"], row["positives"], int(row["n"])): row
        for row in rows
        if row["contender"] == "everypair"
    }
    sizes = sorted({n for _, _, n in ours})
    head = " | ".join(f"10<sup>{len(str(n)) - 1}</sup>" for n in sizes)
    lines = [f"| mode, positives | {head} |", "| --- |" + " --: |" * len(sizes)]
    for mode in ("eager", "graph"):
        for share in ("0.5", "0.01", "0.001"):
            cells = " | ".join(f"{float(ours[mode, share, n]['bce_ratio']):.2f}" for n in sizes)
            lines.append(f"| {mode}, {100 * float(share):g} % | {cells} |")
    one = rows[0]
    lines += [
        "",
        f"*Measured by `python -m benchmarks.gpu` on {one['gpu']}, torch {one['torch']}, everypair "
        f"{one['everypair']} at {one['commit']}, {one['date']}. Largest relative error of loss or "
        f"gradient in its checks: {float(one['worst_error']):.1e}.*",
    ]
    return "\n".join(lines)


def main() -> None:
    rows = read()
    draw(rows, PICTURE)
    text = PAGE.read_text()
    filled = f"<!-- gpu rows -->\n{table(rows)}\n<!-- end of gpu rows -->"
    PAGE.write_text(
        re.sub(
            r"<!-- gpu rows -->.*?<!-- end of gpu rows -->", lambda _: filled, text, flags=re.DOTALL
        )
    )


if __name__ == "__main__":
    main()
