"""Grids that are known to make sense, by the name of their data.

Every loss gets equally many rates, and they bracket the best one: no side is tuned alone. The
exception is `paper_grid`, which is what the paper tried.

>>> sorted(PRESETS)
['catdog', 'cifar10', 'digits', 'stl10', 'table']
>>> len(PRESETS["digits"].grid.trials())
108
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from everypair.experiments.errors import UserError
from everypair.experiments.plan import FULL_BATCH, Grid, Settings, default_optimiser
from everypair.experiments.registry import Registry

__all__ = ["PRESETS", "Preset", "paper_grid", "with_losses"]

Rates: TypeAlias = "dict[str, tuple[float, ...]]"
PAPER_LOSSES = ("squared_hinge", "logistic", "aucm")


@dataclass(frozen=True)
class Preset:
    """What is tried by default, and what all trials share.

    `grid.rates` names losses that the grid does not run by itself, for those who ask for them.
    """

    grid: Grid
    settings: Settings


def _half_decades(first: float, last: float) -> tuple[float, ...]:
    """Return rates from 10**first to 10**last.

    >>> _half_decades(-2, -1)
    (0.01, 0.0316, 0.1)
    """
    steps = range(round(2 * first), round(2 * last) + 1)
    return tuple(float(f"{10 ** (step / 2):.3g}") for step in steps)


# The middle stands first: of equal validation AUCs the first wins, which with few positives is
# often, and the middle is what we would have said beforehand.
_DIGITS_RATES: Rates = {
    "squared_hinge": (0.3, 0.06, 1.5),
    "square": (0.3, 0.06, 1.5),
    "linear_hinge": (0.3, 0.06, 1.5),
    "logistic": (1.0, 0.2, 5.0),
    "weighted_logistic": (0.3, 0.06, 1.5),
    "aucm": (1.0, 0.2, 5.0),
}
_TABLE_RATES: Rates = {
    "squared_hinge": (0.1, 0.01, 1.0),
    "square": (0.1, 0.01, 1.0),
    "linear_hinge": (0.1, 0.01, 1.0),
    "logistic": (1.0, 0.1, 10.0),
    "weighted_logistic": (0.1, 0.01, 1.0),
    "aucm": (1.0, 0.1, 10.0),
}
_IMAGE_RATES: Rates = {
    "squared_hinge": _half_decades(-2.5, -0.5),
    "square": _half_decades(-2.5, -0.5),
    "linear_hinge": _half_decades(-2.5, -0.5),
    "logistic": _half_decades(-1.5, 0.5),
    "weighted_logistic": _half_decades(-2.5, -0.5),
    "aucm": _half_decades(-1.5, 0.5),
}


def _image_preset(data: str) -> Preset:
    return Preset(
        Grid(
            data=data,
            imratios=(0.1, 0.01, 0.001),
            losses=PAPER_LOSSES,
            batches=(50, 500),
            seeds=(0, 1, 2, 3, 4),
            rates=_IMAGE_RATES,
        ),
        Settings(model="resnet20", scores="sigmoid", epochs=40),
    )


PRESETS: Registry[Preset] = Registry(
    "PRESET",
    {
        "digits": Preset(
            Grid(
                data="digits",
                imratios=(0.1, 0.01),
                losses=PAPER_LOSSES,
                batches=(50, 500),
                seeds=(0, 1, 2),
                rates=_DIGITS_RATES,
            ),
            Settings(model="mlp", scores="sigmoid", epochs=50),
        ),
        "table": Preset(
            Grid(
                data="table",
                imratios=(0.0,),
                losses=PAPER_LOSSES,
                batches=(100, 1000),
                seeds=(0, 1, 2),
                rates=_TABLE_RATES,
            ),
            Settings(model="mlp", scores="sigmoid", epochs=15),
        ),
        **{data: _image_preset(data) for data in ("cifar10", "stl10", "catdog")},
    },
)
"""What ``everypair experiment NAME`` runs where nothing else is said."""

_OPTIMISER_RATES = {  # of optimisers whose steps have a size of their own
    "adam": (0.0003, 0.003, 0.03),
    "lbfgs": (0.1, 0.3, 1.0),
}
_MOMENTUM = 10  # times larger are the steps that a momentum of 0.9 ends up making


def paper_grid(data: str) -> Grid:
    """Return what the paper tried: six batch sizes, five seeds, rates half a decade apart.

    The squared hinge got 7 rates and the others 13 (paper, section 4.2).

    >>> len(paper_grid("cifar10").trials())
    2970
    """
    return Grid(
        data=data,
        imratios=(0.1, 0.01, 0.001),
        losses=PAPER_LOSSES,
        batches=(10, 50, 100, 500, 1000, 5000),
        seeds=(0, 1, 2, 3, 4),
        rates={
            "squared_hinge": _half_decades(-4, -1),
            "logistic": _half_decades(-4, 2),
            "aucm": _half_decades(-4, 2),
        },
    )


def with_losses(
    grid: Grid, losses: Sequence[str], optimisers: Sequence[str] = (), **rates: Sequence[float]
) -> Grid:
    """Return a grid of other losses or optimisers, with rates that suit them.

    Parameters
    ----------
    grid : Grid
    losses : sequence of str
    optimisers : sequence of str
        For all losses but those that bring their own.
    **rates : sequence of float
        By loss; the ones of the grid, or of the optimiser, where not given.

    Examples
    --------
    >>> grid = with_losses(PRESETS["digits"].grid, ["square"], ["momentum"])
    >>> grid.rates_of(grid.cells()[0])
    (0.03, 0.006, 0.15)
    """
    chosen = {
        loss: tuple(optimisers)
        for loss in losses
        if optimisers and default_optimiser(loss) == "sgd"
    }
    known: Rates = {}
    for loss in losses:
        if loss not in rates and loss not in grid.rates:
            raise UserError(
                f"no rates are known for the loss {loss!r} on {grid.data}; say which to try: "
                f"--rate {loss}=0.01,0.1,1"
            )
        own = known[loss] = tuple(rates.get(loss, grid.rates.get(loss, ())))
        if loss in rates:
            continue
        for optimiser in chosen.get(loss, ()):
            slowed = tuple(float(f"{rate / _MOMENTUM:.3g}") for rate in own)
            suited = {"momentum": slowed, **_OPTIMISER_RATES}
            if optimiser in suited:
                known[f"{loss}/{optimiser}"] = suited[optimiser]
    batches = (FULL_BATCH,) if tuple(optimisers) == ("lbfgs",) else grid.batches
    return replace(grid, losses=tuple(losses), rates=known, optimisers=chosen, batches=batches)
