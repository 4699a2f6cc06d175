"""Measure the clean-test AUC of losses after a share of the training labels was flipped.

    EVERYPAIR_DATA=folder python -m studies.label_noise run [--data NAME] [--model linear]
    python -m studies.label_noise report      write docs/label-noise.md from the rows

A run that was interrupted continues: what is in studies/rows/label_noise is not trained again.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import everypair as ep
from benchmarks.rows import environment
from studies import ROWS
from studies.label_noise import data
from studies.label_noise.losses import LOSSES
from studies.label_noise.training import MODELS, Found, train

FOLDER = ROWS / "label_noise"
ENVIRONMENT = ("machine", "isa", "torch", "everypair", "commit", "date")

AUCS = ("valid", "test", "test_clean_choice")


@dataclass(frozen=True)
class Job:
    """One training: all noise levels and learning rates of one loss on one split."""

    model: str
    split: int
    loss: str

    def rows(self, found: list[Found]) -> list[dict[str, object]]:
        where = {name: environment()[name] for name in ENVIRONMENT}
        return [
            {
                **vars(self),
                **each._asdict(),
                **{k: f"{getattr(each, k):.5f}" for k in AUCS},
                **where,
            }
            for each in found
        ]


def finished(path: Path) -> set[Job]:
    if not path.exists():
        return set()
    with path.open(newline="") as file:
        return {Job(r["model"], int(r["split"]), r["loss"]) for r in csv.DictReader(file)}


def append(rows: list[dict[str, object]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def run(options: argparse.Namespace) -> None:
    import torch
    from rich.progress import track

    torch.set_num_threads(1)
    ep.set_num_threads(1)
    names = options.data or data.names()
    done = {name: finished(options.output / f"{name}.csv") for name in names}
    jobs = []
    for model in options.model or MODELS:
        splits = range(options.splits or MODELS[model].splits)
        wanted = (
            (name, Job(model, split, loss)) for split, name, loss in product(splits, names, LOSSES)
        )
        jobs += [(name, job) for name, job in wanted if job not in done[name]]
    for name, job in track(jobs, "Training"):
        parts = data.splits_of(name, job.split)
        found = train(job.model, LOSSES[job.loss], parts, job.split)
        append(job.rows(found), options.output / f"{name}.csv")


def main() -> None:
    parser = argparse.ArgumentParser("python -m studies.label_noise")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--splits", type=int, help="re-splits of each data set")
    running.add_argument("--data", action="append", help="run only this data set; repeatable")
    running.add_argument("--model", action="append", choices=MODELS, help="run only this model")
    running.add_argument("--output", type=Path, default=FOLDER, help="folder of the rows")
    reporting = commands.add_parser("report")
    reporting.add_argument("--rows", type=Path, default=FOLDER, help="folder of the rows")
    options = parser.parse_args()
    if options.command == "run":
        run(options)
    else:
        from studies.label_noise import report

        print(report.fill(options.rows))


if __name__ == "__main__":
    main()
