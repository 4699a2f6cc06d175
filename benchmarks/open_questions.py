"""The questions that the paper leaves open, on tables: hinges, optimisers and batch sizes.

EVERYPAIR_DATA=folder python -m benchmarks.open_questions run [PART ...]     about 20 minutes
python -m benchmarks.open_questions rows                 results/open-questions/PART.jsonl
python -m benchmarks.study report                        draws them with the rest

The trials, the choice of rates and the rows are those of `benchmarks.study`: all rates of a loss on
one seed, the best one on five seeds. Data are tables of the folder, networks are trained on a CPU.
"""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks import study
from benchmarks.study import ROOT, Part
from everypair.experiments.data import sources
from everypair.experiments.plan import FULL_BATCH, Settings, TableFile

STORE = ROOT / "runs" / "open_questions.db"
TABLES = ("mammography", "abalone_19", "oil_spill", "ijcnn1")
MODELS = ("linear", "mlp")
FOLDER = "open-questions"

_HINGE, _LOGISTIC = (0.01, 0.1, 1.0), (0.1, 1.0, 10.0)
_SGD_RATES = (("squared_hinge", _HINGE), ("linear_hinge", _HINGE), ("logistic", _LOGISTIC))
_LBFGS_RATES = tuple((loss, (0.1, 0.3, 1.0)) for loss, _ in _SGD_RATES)
_HINGES = tuple(loss for loss, _ in _SGD_RATES)
_TABLE = Settings(epochs=20)


def _on_table(data: str, model: str) -> Part:
    return Part(
        data,
        replace(_TABLE, model=model),
        _HINGES,
        imratios=(0.0,),
        rates=_SGD_RATES,
        finalists=1,
    )


HINGES = {
    f"hinges-{data}-{model}": _on_table(data, model) for data in TABLES[:3] for model in MODELS
}
"""Linear hinge, squared hinge and logistic loss, by SGD."""

OPTIMISERS = {
    f"optimisers-{model}-{optimiser}": replace(
        _on_table("mammography", model),
        losses=("squared_hinge", "logistic"),
        optimiser=optimiser,
        rates=_LBFGS_RATES if optimiser == "lbfgs" else _SGD_RATES,
        batches=(FULL_BATCH if optimiser == "lbfgs" else 100,),
    )
    for model in MODELS
    for optimiser in ("sgd", "sag", "lbfgs")
}
"""SGD and SAG with batches of 100 rows, L-BFGS with all rows."""

_RARE = Part(
    "ijcnn1",
    Settings(model="mlp", epochs=10, subtrain_sample=5000),
    ("squared_hinge", "logistic"),
    imratios=(0.001,),
    batches=(100, 1000, 10_000, FULL_BATCH),
    rates=(("squared_hinge", (0.02, 0.1, 0.5, 2.5)), ("logistic", (0.2, 1.0, 5.0, 25.0))),
    finalists=1,
)
BATCHES = {
    "batches-shuffle": _RARE,
    "batches-stratified": replace(
        _RARE, settings=replace(_RARE.settings, sampler="stratified"), batches=_RARE.batches[:-1]
    ),
}
"""Batch sizes with 0.1 % positives, drawn at random, and with both classes in each batch."""

PARTS = HINGES | OPTIMISERS | BATCHES


def load(name: str, table: TableFile | None = None) -> sources.Dataset:
    """Load a table of the folder that EVERYPAIR_DATA names."""
    path = Path(os.environ["EVERYPAIR_DATA"]) / "tabular" / f"{name}.parquet"
    return replace(sources.load("table", table=TableFile(str(path), "label")), name=name)


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.open_questions")
    parser.add_argument("task", choices=("run", "rows"))
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--store", type=Path, default=STORE)
    given = parser.parse_args()
    store = given.store.absolute()
    if given.task == "rows":
        study.write_rows(store, study.RESULTS / FOLDER, PARTS)
        return
    for name in TABLES:
        sources.register(name, partial(load, name))
    chosen = {name: PARTS[name] for name in given.parts} or PARTS
    study.run(chosen, store, given.minutes, "cpu", compiled=False)


if __name__ == "__main__":
    main()
