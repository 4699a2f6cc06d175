"""Rerun the paper's study of images, and draw its tables and figures.

python -m studies.images commands [PART ...]     print the `everypair experiment` of each part
EVERYPAIR_DATA=folder python -m studies.images run [PART ...] [--minutes 9] [--store FILE]
python -m studies.images rows [--store FILE]     write the store's records to results/PART.jsonl
EVERYPAIR_DATA=folder python -m studies.images counts    count batches of one class in rows again
python -m studies.images figure2 --device cpu    time losses, into results/figure2-cpu.json
python -m studies.images report                  draw tables and figures from files in results/

A part is an experiment of the library. `run` runs several parts until the time is over: it does the
same as their commands, one after the other. The rows come from the store that both write.

For each imratio and batch size of a part, every loss is trained with all its rates on seed 0. The
rates with the greatest validation AUC are then trained on all seeds. In most parts these are two of
five rates, and five seeds. The result of a seed is the test AUC of the rate and the epoch with the
greatest validation AUC, among the rates that were trained on all seeds (`chosen`).
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everypair.experiments.errors import UserError
from everypair.experiments.plan import FULL_BATCH, Grid, Record, Settings
from everypair.experiments.presets import PRESETS, with_losses
from everypair.experiments.report.selection import gathered, results
from everypair.experiments.search import store as stores
from everypair.experiments.search.finalists import blocks, finals, screening

if TYPE_CHECKING:
    from everypair.experiments.data.sources import Dataset
    from everypair.experiments.search.runner import Event

Chosen = dict[tuple[float, int, str], dict[int, Record]]
"""Records by imratio, batch size and loss, and then by seed."""

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "studies" / "results"
STORE = ROOT / "runs" / "study.db"
SEEDS = (0, 1, 2, 3, 4)
TOGETHER = 8
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
    joint: bool = False  # choose batch and rate together, on the first seed, which does not count

    def grid(self) -> Grid:
        """Return all combinations; `finalists` of them run on all seeds, for each batch size."""
        own = dict(self.rates)
        rates = {loss: own.get(loss) or RATES[loss] for loss in self.losses}
        optimisers = {loss: (self.optimiser,) for loss in self.losses if loss != "aucm"}
        return Grid(
            self.data, self.imratios, self.losses, self.batches, self.seeds, rates, optimisers
        )

    def blocks(self) -> list[Grid]:
        """Return the grids in which finalists are chosen, with all seeds and rates.

        One for each imratio and batch size, or for each imratio if the part is joint.
        """
        return blocks(self.grid(), per_batch=not self.joint)

    def command(self, store: str) -> list[str]:
        """Return the command that runs this part, ``everypair experiment ...``, in words.

        Options whose value is that of the preset are left out.
        """
        preset, grid = PRESETS[self.data], self.grid()
        optimisers = () if self.optimiser == "sgd" else (self.optimiser,)
        usual = with_losses(preset.grid, self.losses, optimisers)
        options = [
            ("imratio", _joined(grid.imratios), _joined(usual.imratios)),
            ("losses", ",".join(grid.losses), ",".join(preset.grid.losses)),
            ("optimiser", self.optimiser, "sgd"),
            ("batch", _sizes(grid.batches), _sizes(usual.batches)),
            ("seeds", len(grid.seeds), len(usual.seeds)),
            ("finalists", self.finalists, None),
        ]
        for name, value in asdict(self.settings).items():
            option = "batches" if name == "sampler" else name.replace("_", "-")
            options.append((option, value, getattr(preset.settings, name)))
        words = [word for name, own, its in options if own != its for word in (f"--{name}", own)]
        words += ["--per-batch"] * (len(grid.batches) > 1 and not self.joint)
        for cell in screening(blocks(grid)[0]).cells():
            if grid.rates_of(cell) != usual.rates_of(cell):
                words += ["--rate", f"{cell.loss}={_joined(grid.rates_of(cell))}"]
        words += ["--mixed", "--together", TOGETHER, "--storage", store]
        return ["everypair", "experiment", self.data, *map(str, words)]


def _joined(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)


def _sizes(batches: Sequence[int]) -> str:
    return ",".join("full" if batch == FULL_BATCH else str(batch) for batch in batches)


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
JOINT = Part(
    "cifar10",
    imratios=(0.001, 0.01, 0.1),
    batches=(5000, 1000, 500, 100, 50),
    seeds=(*SEEDS, 5),
    finalists=1,
    joint=True,
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
    "cifar10-raw-rates": Part(  # the losses whose best rate was the largest
        "cifar10",
        RAW,
        ("squared_hinge", "weighted_logistic"),
        imratios=(0.1,),
        rates=(("squared_hinge", SMALL), ("weighted_logistic", LARGE)),
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
    "cifar10-joint": JOINT,
    "catdog-joint": replace(JOINT, data="catdog", imratios=(0.001, 0.01)),
    "cifar10-joint-raw": replace(
        JOINT,
        settings=RAW,
        losses=("squared_hinge", "linear_hinge"),
        rates=(("squared_hinge", TINY), ("linear_hinge", SMALL)),
        reference="cifar10-joint",
    ),
}
"""The parts of the study by name, in the order in which they run."""


def run(parts: Mapping[str, Part], path: Path, minutes: float, device: str, compiled: bool) -> None:
    """Run parts one after the other until the time is over, as `Part.command` does one part."""
    from everypair.experiments.data import sources
    from everypair.experiments.search import runner
    from everypair.experiments.search.work import work_for

    deadline = time.monotonic() + 60 * minutes
    for name, part in parts.items():
        try:
            data = sources.load(part.data)
        except Exception as error:  # the other parts may have their data
            print(f"{name}: left out, {error}", flush=True)
            continue
        print(f"{name}: {len(data.positive)} rows", flush=True)
        settings = replace(part.settings, fingerprint=data.fingerprint)
        work, workers = work_for(
            settings, device, None, together=TOGETHER, mixed=True, compiled=compiled
        )
        try:
            with stores.open(f"sqlite:///{path}#{name}", create=True) as store:
                runner.run(
                    part.grid(),
                    settings,
                    store,
                    work=work,
                    workers=workers,
                    finalists=part.finalists,
                    per_batch=not part.joint,
                    deadline=deadline,
                    on_event=_print_event,
                )
        except runner.TimeIsUpError:
            print("time is up; the same command continues", flush=True)
            return
        except UserError as error:  # the other parts may work
            print(f"{name}: given up, {error}", flush=True)


def print_commands(parts: Mapping[str, Part], path: Path) -> None:
    """Print the command of each part; its report goes to a folder beside the store."""
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    for name, part in parts.items():
        words = part.command(f"sqlite:///{path}#{name}")
        print(shlex.join([*words, "--out", str(path.parent / name)]))


def _print_event(event: Event) -> None:
    place = f"stage {event.stage} of {event.n_stages}, {event.counts}"
    if event.kind == "separated":
        print(f"{place}: each loss is tried alone, because {event.reason}", flush=True)
    if (record := event.record) is not None:
        cell = record.trial.cell
        found = record.reason or f"validation AUC {record.validation_auc:.4f}"
        print(
            f"{place}: {cell.loss} imratio={cell.imratio:g} seed={cell.seed} {record.trial.name} "
            f"{record.state}, {record.seconds:.1f} s, {found}",
            flush=True,
        )


def write_rows(path: Path, folder: Path = RESULTS, parts: Mapping[str, Part] | None = None) -> None:
    """Write the finished trials of every part of a store to ``PART.jsonl``, if it has any."""
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


def count_one_class(folder: Path, parts: Mapping[str, Part]) -> None:
    """Count the batches of one class of every row of the parts again, without training.

    The batches follow from the seed and the epoch alone. Trials that were trained together used to
    record a multiple of this number; this function corrected their rows.
    """
    from everypair.experiments.data import sources

    for name, part in parts.items():
        path = folder / f"{name}.jsonl"
        if not path.is_file():
            continue
        settings, records = read_rows(path)
        data = sources.load(part.data)
        if data.fingerprint != settings.fingerprint:
            raise SystemExit(f"{name}: its rows were made with other data than these")
        first, *lines = path.read_text().splitlines()
        counts: dict[tuple[float, int, int], list[int]] = {}
        for k, record in enumerate(records):
            key = (record.trial.cell.imratio, record.trial.cell.seed, record.trial.batch)
            if key not in counts:
                counts[key] = _one_class_counts(data, settings, *key)
            # A training that diverged ended with the first epoch that is not in its history.
            n_epochs = min(len(record.history["epoch"]), settings.epochs)
            lines[k] = json.dumps(json.loads(lines[k]) | {"n_one_class": counts[key][n_epochs]})
        path.write_text("\n".join([first, *lines, ""]))


def _one_class_counts(
    data: Dataset, settings: Settings, imratio: float, seed: int, batch: int
) -> list[int]:
    """Return the numbers of batches of one class in the first 0, 1, 2, ... epochs."""
    import torch

    from everypair.experiments.data.splits import split_rows
    from everypair.experiments.training.batches import Batches

    rows = split_rows(data, imratio=imratio, seed=seed, protocol=settings.protocol).subtrain
    labels = torch.from_numpy(data.positive[rows])
    batches = Batches(labels, None, size=batch, settings=settings, seed=seed)
    counts = [0]
    for epoch in range(1, settings.epochs + 1):
        batches.plan(epoch)
        counts.append(batches.n_one_class)
    return counts


def counted(part: Part, records: Sequence[Record]) -> list[Record]:
    """Return the records that count: of every complete loss, all rates trained on all seeds.

    In a block (one imratio, one batch size) a loss is complete when all its rates are trained on
    the first seed and its finalists on all seeds. If its rates were extended after that, more rates
    than the finalists are trained on all seeds. In a joint part the first seed only chooses.
    """
    found = {record.trial: record for record in records if record.state != "failed"}
    kept: list[Record] = []
    for block in part.blocks():
        for loss in block.losses:
            own = replace(block, losses=(loss,))
            final = finals(own, records, part.finalists).trials()
            if not all(trial in found for trial in [*screening(own).trials(), *final]):
                continue
            if part.joint:
                kept += [found[trial] for trial in final if trial.cell.seed != own.seeds[0]]
                continue
            for trials in gathered(own.trials(), attrgetter("rate")).values():
                if all(trial in found for trial in trials):
                    kept += [found[trial] for trial in trials]
    return kept


def chosen(path: Path, part: Part) -> Chosen:
    """Return for each seed the record with the greatest validation AUC among those that count.

    Empty if the part was not run.
    """
    winners: Chosen = {}
    records = counted(part, read_rows(path)[1]) if path.is_file() else []
    for batch, own in gathered(records, attrgetter("trial.batch")).items():
        for result in results(own):
            if result.winner is not None:
                key = (result.cell.imratio, batch, result.cell.loss)
                winners.setdefault(key, {})[result.cell.seed] = result.winner
    return winners


def main() -> None:
    parser = argparse.ArgumentParser("python -m studies.images")
    parser.add_argument("task", choices=("commands", "run", "rows", "counts", "figure2", "report"))
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true", help="fuse kernels by torch.compile")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no part {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
    parts = {name: PARTS[name] for name in given.parts} or PARTS
    if given.task == "commands":
        print_commands(parts, given.store)
    elif given.task == "run":
        run(parts, given.store.absolute(), given.minutes, given.device, given.compile)
    elif given.task == "rows":
        write_rows(given.store.absolute(), given.results)
    elif given.task == "counts":
        count_one_class(given.results, parts)
    elif given.task == "figure2":
        from studies import figure2

        print(figure2.measure(given.device, given.results))
    else:
        from studies import images_report

        is_committed = given.results.resolve() == RESULTS
        images_report.write(given.results, ROOT / "docs" if is_committed else None)


if __name__ == "__main__":
    main()
