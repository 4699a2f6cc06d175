"""Make the plot and the tables of the GPU rows, and compare the rows with the limits.

python -m benchmarks.gpu_report    exit code 1 if a limit is exceeded
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks import pages
from benchmarks.rows import ROOT

ROWS = ROOT / "benchmarks" / "rows" / "gpu"
PICTURE = ROOT / "docs" / "assets" / "gpu.svg"
PAGE = ROOT / "docs" / "performance.md"
STYLES = {"AUCM": ("AUCM", "#8172b3"), "BCE": ("torch BCE", "#555555"),
          "everypair": ("everypair", "#0b62c4")}  # fmt: skip
# Largest time relative to BCE, called from Python, and largest error.
BARS = {10**3: 1.5, 10**5: 1.5, 10**6: 1.3, 10**7: 1.2, 10**8: 1.0}
WORST = 1e-6
# Lower bound: scores and labels are read twice and the gradient is written once, at 4.3 TB/s, the
# measured speed of a copy.
FLOOR_MS_A_ROW = 20 / 4.3e12 * 1e3


def read(name: str) -> list[dict[str, str]]:
    with (ROWS / name).open(newline="") as file:
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
    worst = float(rows[0]["worst_error"])
    origin = f"{provenance(rows)} Largest relative error of loss or gradient in its checks"
    return "\n".join([*lines, "", f"*{origin}: {worst:.1e}.*"])


def provenance(rows: list[dict[str, str]], options: str = "") -> str:
    one = rows[0]
    return (
        f"Measured by `python -m benchmarks.gpu{options}` on {one['gpu']}, torch {one['torch']}, "
        f"everypair {one['everypair']} at {one['commit']}, {one['date']}."
    )


def questions(rows: list[dict[str, str]]) -> str:
    found = {(row["question"], int(row["n"]), row["way"]): float(row["median_ms"]) for row in rows}
    sizes = sorted({n for _, n, _ in found})
    head = " | ".join(f"10<sup>{len(str(n)) - 1}</sup>" for n in sizes)
    lines = [f"| asked | {head} |", "| --- |" + " --: |" * len(sizes)]
    for question in dict.fromkeys(question for question, _, _ in found):
        cells = " | ".join(
            f"{found[question, n, 'kernels']:.2f} ({found[question, n, 'operations']:.2f})"
            for n in sizes
        )
        lines.append(f"| {question} | {cells} |")
    return "\n".join([*lines, "", f"*{provenance(rows, ' --only questions')}*"])


def missed(rows: list[dict[str, str]]) -> list[str]:
    """Return one line for each limit that the rows exceed."""
    found = []
    aucm = {
        (row["n"], row["positives"], row["mode"]): float(row["median_ms"])
        for row in rows
        if row["contender"] == "AUCM"
    }
    for row in (row for row in rows if row["contender"] == "everypair"):
        place = row["n"], row["positives"], row["mode"]
        ratio, limit = float(row["bce_ratio"]), BARS.get(int(row["n"]), float("inf"))
        if row["mode"] == "eager" and ratio > limit:
            found.append(f"{place}: {ratio} of BCE's time, {limit} allowed")
        if float(row["median_ms"]) > aucm[place]:
            found.append(f"{place}: {row['median_ms']} ms, AUCM takes {aucm[place]}")
    if not float(rows[0]["worst_error"]) <= WORST:
        found.append(f"an error of {rows[0]['worst_error']}, {WORST} allowed")
    return found


def main() -> None:
    rows = read("loss_and_grad.csv")
    draw(rows, PICTURE)
    asked = questions(read("questions.csv"))
    pages.fill([PAGE], {"gpu rows": f"{table(rows)}\n", "gpu questions": f"{asked}\n"})
    if found := missed(rows):
        sys.exit("missed:\n" + "\n".join(found))


if __name__ == "__main__":
    main()
