"""Grids of hyper-parameters for each data set, and the settings that go with them.

Every loss has equally many learning rates, around its best one, so that no loss is tuned more than
the others. The exception is `paper_grid`, the grid of the paper.

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

Rates: TypeAlias = "dict[str, tuple[float, ...]]"
PAPER_LOSSES = ("squared_hinge", "logistic", "aucm")


@dataclass(frozen=True)
class Preset:
    """The default grid of a data set, and the settings of all its trials.

    `grid.rates` also has rates for losses that run only if ``--losses`` names them.
    """

    grid: Grid
    settings: Settings


def _half_decades(first: float, last: float) -> tuple[float, ...]:
    """Return rates from 10**first to 10**last, two per decade.

    >>> _half_decades(-2, -1)
    (0.01, 0.0316, 0.1)
    """
    steps = range(round(2 * first), round(2 * last) + 1)
    return tuple(float(f"{10 ** (step / 2):.3g}") for step in steps)


def _rates(small: tuple[float, ...], large: tuple[float, ...]) -> Rates:
    """Return rates for every loss: large ones for logistic and AUCM, small ones for the others."""
    others = ("squared_hinge", "square", "linear_hinge", "weighted_logistic")
    return dict.fromkeys(others, small) | dict.fromkeys(("logistic", "aucm"), large)


def _preset(
    data: str,
    rates: Rates,
    *,
    imratios: tuple[float, ...],
    seeds: int,
    epochs: int,
    batches: tuple[int, ...] = (50, 500),
    model: str = "mlp",
) -> Preset:
    grid = Grid(data, imratios, PAPER_LOSSES, batches, tuple(range(seeds)), rates)
    return Preset(grid, Settings(model=model, scores="sigmoid", epochs=epochs))


# The middle rate comes first. Of equal validation AUCs the first trial wins, and with few
# positives equal AUCs are frequent; the middle rate is then the most sensible choice.
_DIGITS_RATES = _rates((0.3, 0.06, 1.5), (1.0, 0.2, 5.0))
_TABLE_RATES = _rates((0.1, 0.01, 1.0), (1.0, 0.1, 10.0))
_IMAGE_RATES = _rates(_half_decades(-2.5, -0.5), _half_decades(-1.5, 0.5))
_IMAGES = ("cifar10", "stl10", "catdog")  # the image data sets with a preset


PRESETS: Registry[Preset] = Registry(
    "PRESET",
    {
        "digits": _preset("digits", _DIGITS_RATES, imratios=(0.1, 0.01), seeds=3, epochs=50),
        "table": _preset(
            "table", _TABLE_RATES, imratios=(0.0,), seeds=3, epochs=15, batches=(100, 1000)
        ),
        **{
            data: _preset(
                data,
                _IMAGE_RATES,
                imratios=(0.1, 0.01, 0.001),
                seeds=5,
                epochs=40,
                model="resnet20",
            )
            for data in _IMAGES
        },
    },
)
"""The presets of ``everypair experiment NAME``, by name."""

_OPTIMISER_RATES = {  # for optimisers that scale their steps themselves
    "adam": (0.0003, 0.003, 0.03),
    "lbfgs": (0.1, 0.3, 1.0),
}
_MOMENTUM = 10  # a momentum of 0.9 makes steps 10 times larger in the long run


def paper_grid(data: str) -> Grid:
    """Return the grid of the paper: six batch sizes, five seeds, two rates per decade.

    The squared hinge has 7 rates and the other losses 13 (paper, section 4.2).

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
    """Return the grid with other losses or optimisers, and with rates that suit them.

    Parameters
    ----------
    grid : Grid
    losses : sequence of str
    optimisers : sequence of str
        For all losses except those that need their own optimiser.
    **rates : sequence of float
        Rates by loss. The default is the rates of the grid, or those of the optimiser.

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
                f"no rates are known for the loss {loss!r} on {grid.data}; name some, for "
                f"example --rate {loss}=0.01,0.1,1"
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
