"""The questions that the paper leaves open, on tables: hinges, optimisers and batch sizes.

python -m studies.open_questions commands             the `everypair experiment` of each part
EVERYPAIR_DATA=folder python -m studies.open_questions run [PART ...]     about 20 minutes
python -m studies.open_questions rows                 results/open-questions/PART.jsonl
python -m studies.images report                        draws them with the rest

The trials, the choice of rates and the rows are those of `studies.images`: all rates of a loss on
one seed, the best one on five seeds. Networks are trained on a CPU. The data are tables of the
folder; the commands need ``EVERYPAIR_EXTENSIONS=studies/folder_tables.py``, which adds them.
"""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import replace
from pathlib import Path

from everypair.experiments.plan import FULL_BATCH, Settings
from everypair.experiments.registry import EXTENSIONS
from studies import images
from studies.images import ROOT, Part

STORE = ROOT / "runs" / "open_questions.db"
DATA = ROOT / "studies" / "folder_tables.py"
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
    f"hinges-{data}-{model}": _on_table(data, model)
    for data in ("mammography", "abalone_19", "oil_spill")
    for model in MODELS
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

_RARE_RATES = (
    ("squared_hinge", (0.0008, 0.004, 0.02, 0.1, 0.5, 2.5, 12.5)),
    ("logistic", (0.04, 0.2, 1.0, 5.0, 25.0, 125.0, 625.0)),
    ("weighted_logistic", (0.0008, 0.004, 0.02, 0.1, 0.5, 2.5, 12.5)),
)
_RARE = Part(
    "ijcnn1",
    Settings(model="mlp", epochs=10, subtrain_sample=5000),
    tuple(loss for loss, _ in _RARE_RATES),
    imratios=(0.001,),
    batches=(100, 1000, 10_000, FULL_BATCH),
    rates=_RARE_RATES,
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


def main() -> None:
    parser = argparse.ArgumentParser("python -m studies.open_questions")
    parser.add_argument("task", choices=("commands", "run", "rows"))
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--store", type=Path, default=STORE)
    given = parser.parse_args()
    store = given.store.absolute()
    if given.task == "rows":
        images.write_rows(store, images.RESULTS / FOLDER, PARTS)
        return
    os.environ.setdefault(EXTENSIONS, str(DATA))  # worker processes inherit it
    chosen = {name: PARTS[name] for name in given.parts} or PARTS
    if given.task == "commands":
        images.print_commands(chosen, store)
    else:
        images.run(chosen, store, given.minutes, "cpu", compiled=False)


if __name__ == "__main__":
    main()
