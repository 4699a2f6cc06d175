"""The paper's figure 2: time of loss and gradient against the number of rows, with fitted slopes.

`measure` writes the timings of one device to results/figure2-DEVICE.json, by the same code as
``everypair timing``. `section` draws them and returns a table beside the claims of the paper.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from benchmarks.rows import environment
from everypair.experiments.figures import output, timing, timing_plot

CONTENDERS = {
    "cpu": ("naive", "paper", "numpy", "native", "torch", "logistic", "aucm"),
    "gpu": ("naive_cuda", "cuda", "logistic_cuda"),
}
"""By device: what is timed."""

SURROGATES = ("square", "squared_hinge")
LARGEST = 10**7
CLAIMS = {
    "naive": "2, about 1,000 rows in a second",
    "paper": "log-linear, about 1,000,000 rows in a second",
    "logistic": "1",
    "naive_cuda": "2",
    "cuda": "log-linear",
    "logistic_cuda": "1",
}
"""What the paper says in section 4.1 and in its conclusion. Its program ran on a CPU."""


def measure(device: str, folder: Path, *, largest: int = LARGEST, seconds: float = 0.1) -> Path:
    """Time all contenders of a device and write the timings; takes one to two minutes."""
    kind = "gpu" if device.startswith("cuda") else "cpu"
    sizes = timing.sizes(largest)
    where = {**environment(), "load": round(os.getloadavg()[0], 1)}
    results = [
        timing.run(CONTENDERS[kind], sizes, surrogate=one, seconds=seconds) for one in SURROGATES
    ]
    if kind == "gpu":
        import torch

        where["gpu"] = torch.cuda.get_device_name()
    path = folder / f"figure2-{kind}.json"
    folder.mkdir(parents=True, exist_ok=True)
    found = [{**asdict(result), "slopes": result.slopes} for result in results]
    path.write_text(json.dumps({"where": where, "results": found}, indent=1) + "\n")
    return path


def read(path: Path) -> tuple[list[timing.Result], dict[str, str | int]]:
    """Return the timings of a file by surrogate, and the machine that they were taken on."""
    plain = json.loads(path.read_text())
    results = []
    for found in plain.get("results", [plain]):  # one surrogate in files from before both were run
        timings = [timing.Timing(**one) for one in found["timings"]]
        left_out, surrogate = found["left_out"], found["surrogate"]
        results.append(timing.Result(timings, left_out, surrogate, found["threads"]))
    return results, plain["where"]


def section(folder: Path, figures: Path) -> tuple[str, list[Path]]:
    """Draw the figure of each device into `figures`; return a table in Markdown, and the files."""
    lines, files = [], []
    for kind in CONTENDERS:
        path = folder / f"figure2-{kind}.json"
        if not path.is_file():
            continue
        results, where = read(path)
        picture = figures / f"study-figure2-{kind}.svg"
        output.save(picture, timing_plot.draw(results))
        files.append(picture)
        machine = where.get("gpu", where["machine"])
        load = where.get("load")
        busy = f" It was not idle: its load was {load} before." if load and load > 0.5 else ""
        lines += [f"On {machine}, {results[0].threads} thread.{busy}", ""]
        for result in results:
            name = result.surrogate.replace("_", " ")
            lines += [
                f"| {name} | slope | time of the largest n | largest n in a second | paper |",
                "|---|---|---|---|---|",
                *(_line(name, result) for name in CONTENDERS[kind] if result.of(name)),
                "",
            ]
        lines += [
            f"![Time against n on {machine}]({{assets}}/{picture.name})",
            "",
        ]
    return "\n".join(lines), files


def _line(name: str, result: timing.Result) -> str:
    fitted = result.slopes[name]
    most = max((t.n for t in result.of(name) if t.median <= 1.0), default=0)
    last = result.of(name)[-1]
    cells = [
        timing.CONTENDERS[name].label,
        "" if fitted is None else f"{fitted:.2f}",
        f"{timing_plot.duration(last.median)} ({last.n:,})",
        f"{most:,}" + (" or more" if most == LARGEST else ""),
        CLAIMS.get(name, ""),
    ]
    return f"| {' | '.join(cells)} |"
