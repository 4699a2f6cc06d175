"""Tables of the study of images that compare several of its parts, from the rows in results/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median_low

from everypair.experiments.display_names import display_name
from everypair.experiments.plan import Record
from everypair.experiments.report.selection import results
from studies.images import CAUSE, PARTS, RECIPE_PART, chosen
from studies.open_questions_report import gap, gap_text, mean_auc, table

CAUSES = ("cifar10-cause-float32", "cifar10-cause-200-epochs")
"""Parts with the logistic loss alone."""

LOSSES = (("cifar10", "cifar10-raw"), ("catdog",), ("stl10",))
"""Parts of a data set whose losses are all compared with each other."""

BATCHES = ("cifar10", "cifar10-batches", "cifar10-paper")

BySeed = Mapping[int, Record]


def write(folder: Path) -> dict[str, tuple[str, str]]:
    """Return the title and the text of each summary that has rows, by name."""
    every = "\n".join(filter(None, (every_difference(folder, names) for names in LOSSES)))
    summaries = {
        "losses": ("All losses", every),
        "batches": ("Batch sizes and protocols on CIFAR10, 1 % positives", batches(folder)),
        "recipe": ("The recipe on CIFAR10, 1 % positives", recipe(folder)),
        "causes": ("Logistic loss, 10 % positives", causes(folder)),
    }
    return {name: found for name, found in summaries.items() if found[1]}


def every_difference(folder: Path, names: Sequence[str]) -> str:
    """Return a table of the differences between all losses of some parts; empty without rows."""
    aucs: dict[str, dict[float, dict[int, Record]]] = {}
    for name in names:
        path = folder / f"{name}.jsonl"
        if not path.is_file():
            return ""
        raw = " (raw)" if name == "cifar10-raw" else ""
        for (imratio, _, loss), seeds in chosen(path, PARTS[name]).items():
            label = display_name(loss) + (raw if loss == "squared_hinge" else "")
            aucs.setdefault(label, {})[imratio] = seeds
    imratios = sorted({imratio for own in aucs.values() for imratio in own}, reverse=True)
    lines, n_all, n_clear = [], 0, 0
    for first, second in combinations(aucs, 2):
        cells = []
        for imratio in imratios:
            if imratio not in aucs[first] or imratio not in aucs[second]:
                cells.append("")
                continue
            found = gap(aucs[first][imratio], aucs[second][imratio])
            is_clear = found[1] > 0 or found[2] < 0
            cells.append(f"**{gap_text(found)}**" if is_clear else gap_text(found))
            n_all, n_clear = n_all + 1, n_clear + is_clear
        lines.append([first, second, *cells])
    heads = " | ".join(f"{100 * imratio:g} % positives" for imratio in imratios)
    count = f"{n_clear} of {n_all} intervals exclude 0 (bold)."
    title = f"{display_name(PARTS[names[0]].data)}, test AUC, first minus second. {count}"
    return "\n".join([title, "", table(f"first | second | {heads}", lines), ""])


def batches(folder: Path) -> str:
    """Return a table of the paper's losses on CIFAR10 with 1 % positives, by batch size.

    In its last line, validation chooses the batch size too, among those of the corrected protocol.
    """
    losses = PARTS["cifar10"].losses
    others = [loss for loss in losses if loss != "logistic"]
    found: dict[tuple[str, object], dict[str, dict[int, Record]]] = {}
    corrected: list[Record] = []
    for name in BATCHES:
        part = PARTS[name]
        for (imratio, batch, loss), seeds in chosen(folder / f"{name}.jsonl", part).items():
            if imratio == RECIPE_PART.imratios[0]:
                found.setdefault((part.settings.protocol, batch), {})[loss] = seeds
                corrected += seeds.values() if part.settings.protocol == "corrected" else ()
    best: dict[str, dict[int, Record]] = {}
    for result in results(corrected):
        if result.winner is not None:
            best.setdefault(result.cell.loss, {})[result.cell.seed] = result.winner
    if best:
        sizes = {
            loss: median_low(r.trial.batch for r in own.values()) for loss, own in best.items()
        }
        medians = ", ".join(str(sizes[loss]) for loss in losses if loss in sizes)
        found["corrected", f"chosen, medians {medians}"] = best
    lines = [
        [
            protocol,
            batch,
            *(_mean(own.get(loss)) for loss in losses),
            *(_difference(own.get(loss), own.get("logistic")) for loss in others),
        ]
        for (protocol, batch), own in sorted(found.items(), key=_numbers_first)
    ]
    heads = ["protocol", "batch", *map(display_name, losses)]
    heads += [f"{display_name(loss)} minus logistic" for loss in others]
    return _table(" | ".join(heads), lines)


def recipe(folder: Path) -> str:
    """Return the table of test AUCs with and without the recipe."""
    plain = {**_of_losses(folder, "cifar10"), **_of_losses(folder, "cifar10-raw")}
    warm = _of_losses(folder, "cifar10-recipe-warm")
    lines = [
        [
            display_name(loss),
            _mean(plain.get(loss)),
            _mean(seeds),
            _difference(seeds, plain.get(loss)),
            _mean(warm.get(loss)),
            _difference(warm.get(loss), seeds),
        ]
        for loss, seeds in _of_losses(folder, "cifar10-recipe").items()
    ]
    return _table("loss | plain | recipe | minus plain | warm start | minus recipe", lines)


def causes(folder: Path) -> str:
    """Return a table of the logistic loss with 10 % positives, by precision and epochs."""
    lines = []
    for name in ("cifar10", *CAUSES):
        part = PARTS[name]
        key = (CAUSE.imratios[0], CAUSE.batches[0], CAUSE.losses[0])
        seeds = chosen(folder / f"{name}.jsonl", part).get(key, {})
        for seed in (seed for seed in CAUSE.seeds if seed in seeds):
            best = seeds[seed]
            network = (part.settings.precision, part.settings.epochs, seed, f"{best.trial.rate:g}")
            aucs = (best.best_epoch, f"{best.validation_auc:.3f}", f"{best.test_auc:.3f}")
            lines.append([*network, *aucs])
    head = "network | epochs | seed | rate | best epoch | validation AUC | test AUC"
    return _table(head, lines)


def _of_losses(folder: Path, name: str) -> dict[str, BySeed]:
    """Return the trials that count of a part with the recipe's share and batch size, by loss."""
    kept = (RECIPE_PART.imratios[0], RECIPE_PART.batches[0])
    return {
        loss: seeds
        for (imratio, batch, loss), seeds in chosen(folder / f"{name}.jsonl", PARTS[name]).items()
        if (imratio, batch) == kept
    }


def _numbers_first(item: tuple[tuple[str, object], object]) -> tuple[str, bool, object]:
    (protocol, batch), _ = item
    return protocol, isinstance(batch, str), batch


def _table(head: str, lines: Sequence[Sequence[object]]) -> str:
    return table(head, lines) + "\n" if lines else ""


def _mean(seeds: BySeed | None) -> str:
    return mean_auc(seeds) if seeds else ""


def _difference(ours: BySeed | None, theirs: BySeed | None) -> str:
    return gap_text(gap(ours, theirs)) if ours and theirs else ""
