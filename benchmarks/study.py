"""Rerun the paper's study of images, and draw its tables and figures.

EVERYPAIR_DATA=folder python -m benchmarks.study run [PART ...] [--minutes 9] [--store FILE]
python -m benchmarks.study rows [--store FILE]     write the store's records to results/PART.jsonl
python -m benchmarks.study figure2 --device cpu    time losses, into results/figure2-cpu.json
python -m benchmarks.study report                  draw tables and figures from files in results/

For each imratio and batch size of a part, every loss is trained with all its rates on seed 0. The
rates with the greatest validation AUC are then trained on all seeds; only they count. In most parts
these are two of five rates, and five seeds. `run` continues where the store ends, and stops after
`--minutes`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from everypair.experiments.plan import Grid, Record, Settings, Trial
from everypair.experiments.search import store as stores
from everypair.experiments.search.finalists import finals, screening
from everypair.experiments.search.work import SideBySide, Training

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
STORE = ROOT / "runs" / "study.db"
SEEDS = (0, 1, 2, 3, 4)
WIDTH = 8
"""Trials in one CUDA graph, such as two finalists of a loss on four seeds."""

SHARES = (0.1, 0.01, 0.001)
PAPER = ("squared_hinge", "logistic", "aucm")
IMAGES = Settings(
    model="resnet20", scores="sigmoid", epochs=40, precision="bf16", subtrain_sample=2000
)
LARGE = (0.0316, 0.1, 0.316, 1.0, 3.16)
MIDDLE = (0.01, 0.0316, 0.1, 0.316, 1.0)
SMALL = (0.00316, 0.01, 0.0316, 0.1, 0.316)
TINY = (0.000316, 0.001, 0.00316, 0.01, 0.0316)
RATES = {
    "squared_hinge": SMALL,
    "square": SMALL,
    "linear_hinge": SMALL,
    "weighted_logistic": SMALL,
    "pairwise_logistic": MIDDLE,
    "logistic": LARGE,
    "aucm": LARGE,
}


@dataclass(frozen=True)
class Part:
    """A part of the study: a data set, its settings, and what is compared."""

    data: str
    settings: Settings = IMAGES
    losses: tuple[str, ...] = PAPER
    imratios: tuple[float, ...] = SHARES
    batches: tuple[int, ...] = (100,)
    rates: tuple[tuple[str, tuple[float, ...]], ...] = ()  # instead of those of `RATES`
    finalists: int = 2  # rates of each loss that are trained on all seeds
    seeds: tuple[int, ...] = SEEDS
    optimiser: str = "sgd"  # of all losses except AUCM, which has PESG
    reference: str = ""  # the part with the logistic loss, if this part does not have it

    def blocks(self) -> list[Grid]:
        """Return one grid for each imratio and batch size, with all seeds and rates."""
        own = dict(self.rates)
        rates = {loss: own.get(loss) or RATES[loss] for loss in self.losses}
        optimisers = {loss: (self.optimiser,) for loss in self.losses if loss != "aucm"}
        return [
            Grid(self.data, (imratio,), self.losses, (batch,), self.seeds, rates, optimisers)
            for imratio in self.imratios
            for batch in self.batches
        ]


RAW = replace(IMAGES, scores="raw")
RECIPE = replace(RAW, sampler="stratified", schedule="cosine")
MOMENTUM_RATES = (
    ("logistic", (0.00316, 0.01, 0.0316)),
    ("weighted_logistic", (0.001, 0.00316, 0.01)),
    ("squared_hinge", (0.000316, 0.001, 0.00316)),
    ("pairwise_logistic", (0.001, 0.00316, 0.01)),
    ("pairwise_sigmoid", (0.00316, 0.01, 0.0316)),
    ("aucm", (0.1, 0.316, 1.0)),
)
"""About a tenth of the best rates without momentum. PESG, the optimiser of AUCM, has no momentum of
this kind, so its rates are the usual ones."""

RECIPE_PART = Part(
    "cifar10",
    RECIPE,
    tuple(loss for loss, _ in MOMENTUM_RATES),
    imratios=(0.01,),
    rates=MOMENTUM_RATES,
    finalists=1,
    optimiser="momentum",
)
CAUSE = Part(
    "cifar10",
    losses=("logistic",),
    imratios=(0.1,),
    rates=(("logistic", (0.316, 1.0)),),  # the finalists of the part cifar10
    seeds=(0, 1),
)
PARTS = {
    "cifar10": Part("cifar10"),
    "cifar10-raw": Part(
        "cifar10",
        RAW,
        ("squared_hinge", "pairwise_logistic", "weighted_logistic"),
        rates=(("squared_hinge", TINY),),
        reference="cifar10",
    ),
    "cifar10-recipe": RECIPE_PART,
    "cifar10-recipe-warm": replace(
        RECIPE_PART,
        settings=replace(RECIPE, warm_start=10),
        losses=tuple(loss for loss in RECIPE_PART.losses if loss != "logistic"),
        reference="cifar10-recipe",
    ),
    "cifar10-cause-float32": replace(CAUSE, settings=replace(IMAGES, precision="float32")),
    "cifar10-cause-200-epochs": replace(CAUSE, settings=replace(IMAGES, epochs=200)),
    "catdog": Part("catdog"),
    "cifar10-batches": Part("cifar10", imratios=(0.01,), batches=(1000, 500, 50)),
    "cifar10-paper": Part("cifar10", replace(IMAGES, protocol="paper"), imratios=(0.01,)),
    "stl10": Part("stl10", imratios=(0.1, 0.01)),  # with 0.001, validation would have no positives
    "cifar10-linear-hinge": Part("cifar10", losses=("linear_hinge",), reference="cifar10"),
    "cifar10-stratified": Part(
        "cifar10",
        replace(IMAGES, sampler="stratified"),
        imratios=(0.001,),
        batches=(100, 1000),
    ),
    "cifar10-shuffled": Part("cifar10", imratios=(0.001,), batches=(1000,)),
}
"""The parts of the study by name, in the order in which they run."""


class TimeIsUpError(Exception):
    """The time of `run` is over."""


def run_part(
    part: Part,
    store: stores.Store,
    work: Training,
    deadline: float = math.inf,
    say: Callable[[str], None] = print,
) -> None:
    """Run the missing trials of a part; raise TimeIsUpError at the deadline."""
    for block in part.blocks():
        _run_grid(screening(block), part.settings, store, work, deadline, say)
        final = finals(block, store.records(), part.finalists)
        _run_grid(final, part.settings, store, work, deadline, say)


def _run_grid(
    grid: Grid,
    settings: Settings,
    store: stores.Store,
    work: Training,
    deadline: float,
    say: Callable[[str], None],
) -> None:
    store.prepare(grid, settings)
    n_failed, mixed = 0, True
    while claims := _claim_group(store, work, _room(store, grid, work, deadline), mixed=mixed):
        begin = time.monotonic()
        by_trial = {claim.trial: claim for claim in claims}

        def on_epoch(row: dict[str, float]) -> None:
            if time.monotonic() > deadline:
                raise TimeIsUpError

        try:
            for record in work([claim.trial for claim in claims], on_epoch):
                store.finish(by_trial.pop(record.trial), record)
        except (RuntimeError, ValueError) as error:  # the next run tries these trials again
            say(traceback.format_exc())
            if len({claim.trial.cell.loss for claim in claims}) > 1:
                mixed = False  # the trials wait again, and each loss is tried alone
                continue
            for claim in list(by_trial.values()):
                store.finish(claim, Record(claim.trial, "failed", {}, reason=str(error)[:500]))
                del by_trial[claim.trial]
            n_failed += 1
            if n_failed == 2:  # the device or the compiler is at fault, not these trials
                raise
        finally:
            for claim in by_trial.values():
                store.release(claim)
        cell = claims[0].trial.cell
        each = (time.monotonic() - begin) / len(claims)
        losses = ", ".join(dict.fromkeys(claim.trial.cell.loss for claim in claims))
        say(
            f"{cell.data} {cell.imratio:g} batch {claims[0].trial.batch} ({losses}): "
            f"{len(claims)} trials, {each:.2f} s each; {store.counts()}"
        )


def _room(store: stores.Store, grid: Grid, work: Training, deadline: float) -> int:
    """Return how many trials may start, by the time of the trials so far; TimeIsUpError if none."""
    waiting = store.counts().waiting
    # Groups of nearly the same size: 6 and 6, not 8 and 4.
    even = -(-waiting // max(1, -(-waiting // work.width)))
    if not waiting or math.isinf(deadline):
        return even
    seconds = [r.seconds for r in store.records() if r.trial.batch == grid.batches[0]][-WIDTH:]
    room = (deadline - time.monotonic()) / (sum(seconds) / len(seconds) if seconds else 1.0)
    # Fewer than four at once leave the GPU idle, and each then takes longer than estimated.
    if room < min(4, even):
        raise TimeIsUpError
    return min(even, int(room))


def _claim_group(
    store: stores.Store, work: Training, width: int, *, mixed: bool
) -> list[stores.Claim]:
    """Claim trials that may run at once; unless `mixed`, of one loss."""
    claims: list[stores.Claim] = []

    def key(trial: Trial) -> object:
        return work.group_key(trial), mixed or trial.cell.loss

    while len(claims) < width and (
        claim := store.claim(lambda t: not claims or key(t) == key(claims[0].trial))
    ):
        claims.append(claim)
    return claims


def run(parts: Mapping[str, Part], path: Path, minutes: float, device: str, compiled: bool) -> None:
    """Run parts of the study in order until the time is over."""
    from everypair.experiments.data import sources
    from everypair.experiments.training.objectives import OBJECTIVES

    deadline = time.monotonic() + 60 * minutes
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        if missing := [loss for loss in part.losses if loss not in OBJECTIVES]:
            print(f"{name}: no loss {', '.join(missing)} in this version; left out", flush=True)
            part = replace(part, losses=tuple(x for x in part.losses if x in OBJECTIVES))
        try:
            data = sources.load(part.data)
        except Exception as error:  # the other parts may have their data
            print(f"{name}: left out, {error}", flush=True)
            continue
        part = replace(part, settings=replace(part.settings, fingerprint=data.fingerprint))
        work = Training(part.settings, device)
        if device.startswith("cuda"):
            work = SideBySide(part.settings, device, None, WIDTH, compiled, mixed=True)
        print(f"{name}: {len(data.positive)} rows", flush=True)
        try:
            with stores.open(f"sqlite:///{path}#{name}", create=True) as store:
                run_part(part, store, work, deadline, lambda text: print(text, flush=True))
        except TimeIsUpError:
            print("time is up; the same command continues", flush=True)
            return
        except RuntimeError as error:  # the other parts may work
            print(f"{name}: given up, {error}"[:500], flush=True)


def write_rows(path: Path, folder: Path = RESULTS, parts: Mapping[str, Part] | None = None) -> None:
    """Write the finished trials of every part of a store to ``PART.jsonl``, if it has any."""
    from everypair.experiments.errors import UserError

    folder.mkdir(parents=True, exist_ok=True)
    for name in PARTS if parts is None else parts:
        try:
            with stores.open(f"sqlite:///{path}#{name}") as store:
                settings, records = store.settings, store.records()
        except UserError:
            continue  # this part has not begun
        if not records:
            continue
        lines = [asdict(settings), *(record.to_dict() for record in records)]
        text = "".join(json.dumps(_rounded(line)) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text)


def _rounded(plain: Any) -> Any:
    """Round numbers to six significant digits, which keeps the rows small."""
    if isinstance(plain, float):
        return float(f"{plain:.6g}")
    if isinstance(plain, dict):
        return {key: _rounded(value) for key, value in plain.items()}
    return [_rounded(value) for value in plain] if isinstance(plain, list | tuple) else plain


def read_rows(path: Path) -> tuple[Settings, list[Record]]:
    """Read the settings and the records of a part."""
    first, *others = map(json.loads, path.read_text().splitlines())
    return Settings.from_dict(first), [Record.from_dict(plain) for plain in others]


def counted(part: Part, records: Sequence[Record]) -> list[Record]:
    """Return the records that count: those of the finalists of every complete loss.

    In a block (one imratio, one batch size) a loss is complete when all its rates are trained on
    the first seed and its finalists on all seeds.
    """
    found = {record.trial: record for record in records if record.state != "failed"}
    kept: list[Record] = []
    for block in part.blocks():
        for loss in block.losses:
            own = replace(block, losses=(loss,))
            if not all(trial in found for trial in screening(own).trials()):
                continue
            trials = finals(own, records, part.finalists).trials()
            if all(trial in found for trial in trials):
                kept += [found[trial] for trial in trials]
    return kept


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.study")
    parser.add_argument("task", choices=("run", "rows", "figure2", "report"))
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true", help="fuse kernels by torch.compile")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no part {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
    if given.task == "run":
        parts = {name: PARTS[name] for name in given.parts} or PARTS
        run(parts, given.store.absolute(), given.minutes, given.device, given.compile)
    elif given.task == "rows":
        write_rows(given.store.absolute(), given.results)
    elif given.task == "figure2":
        from benchmarks import study_figure2

        print(study_figure2.measure(given.device, given.results))
    else:
        from benchmarks import study_report

        is_committed = given.results.resolve() == RESULTS
        study_report.write(given.results, ROOT / "docs" if is_committed else None)


if __name__ == "__main__":
    main()
