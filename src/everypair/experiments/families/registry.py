"""The table of families, in the order from the simplest to the most expensive."""

from __future__ import annotations

from collections.abc import Sequence

from everypair.experiments.errors import UserError
from everypair.experiments.families import catboost, lightgbm, linear, mlp, xgboost
from everypair.experiments.families.family import Family
from everypair.experiments.plan import Grid
from everypair.experiments.registry import Registry

FAMILIES: Registry[Family] = Registry(
    "model",
    {
        "linear": linear.FAMILY,
        "lightgbm": lightgbm.FAMILY,
        "xgboost": xgboost.FAMILY,
        "catboost": catboost.FAMILY,
        "mlp": mlp.FAMILY,
    },
)
"""The families by name."""

DEFAULT = ("linear", "lightgbm")
"""The families that compete unless ``--models`` names others."""


def grid_of(models: Sequence[str], losses: Sequence[str], seeds: Sequence[int]) -> Grid:
    """Return the trials of some families and losses.

    `losses` may be empty: then each family has its own default losses.
    """
    chosen: dict[str, tuple[str, ...]] = {}
    skipped: list[str] = []
    for model in models or DEFAULT:
        family = FAMILIES.find(model)
        known = (*family.losses, *family.more_losses)
        wanted = tuple(loss for loss in losses if loss in known) if losses else family.losses
        if not family.is_installed:
            skipped.append(f"{model} (not installed: pip install {family.package})")
        elif not wanted:
            skipped.append(f"{model} (has only the losses {', '.join(known)})")
        else:
            chosen[model] = wanted
    every = [loss for family in FAMILIES.values() for loss in (*family.losses, *family.more_losses)]
    if unknown := [loss for loss in losses if loss not in every]:
        raise UserError(
            f"--losses must be among {', '.join(dict.fromkeys(every))} for a table; "
            f"got {', '.join(unknown)}."
        )
    if not chosen:
        raise UserError(f"no model is left to train; skipped: {', '.join(skipped)}.")
    ordered = list(dict.fromkeys(loss for found in chosen.values() for loss in found))
    return Grid(
        data="table",
        imratios=(0.0,),
        losses=tuple(ordered),
        batches=(),
        seeds=tuple(seeds),
        rates={},
        optimisers={
            loss: tuple(model for model, found in chosen.items() if loss in found)
            for loss in ordered
        },
        spaces={model: FAMILIES[model].space for model in chosen},
        skipped=tuple(skipped),
    )
