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
    """Return rates for every loss: large ones for losses with small gradients, small ones else."""
    others = "squared_hinge square linear_hinge weighted_logistic pairwise_logistic"
    others += " effective_number ldam oversampling undersampling smote adasyn"
    return dict.fromkeys(others.split(), small) | dict.fromkeys(
        ("logistic", "aucm", "solam", "pairwise_sigmoid"), large
    )


# The middle rate comes first. Of equal validation AUCs the first trial wins, and with few
# positives equal AUCs are frequent; the middle rate is then the most sensible choice.
_DIGITS_RATES = _rates((0.3, 0.06, 1.5), (1.0, 0.2, 5.0))
_TABLE_RATES = _rates((0.1, 0.01, 1.0), (1.0, 0.1, 10.0))
_IMAGE_RATES = _rates(_half_decades(-2.5, -0.5), _half_decades(-1.5, 0.5))
_PAPER_SHARES = (0.1, 0.01, 0.001)
_IMAGES = ("cifar10", "stl10", "catdog")  # the image data sets with a preset

PRESETS: Registry[Preset] = Registry(
    "PRESET",
    {
        "digits": Preset(
            Grid("digits", (0.1, 0.01), PAPER_LOSSES, (50, 500), (0, 1, 2), _DIGITS_RATES),
            Settings(scores="sigmoid", epochs=50),
        ),
        "table": Preset(
            Grid("table", (0.0,), PAPER_LOSSES, (100, 1000), (0, 1, 2), _TABLE_RATES),
            Settings(scores="sigmoid", epochs=15),
        ),
    }
    | {
        data: Preset(
            Grid(data, _PAPER_SHARES, PAPER_LOSSES, (50, 500), (0, 1, 2, 3, 4), _IMAGE_RATES),
            Settings(model="resnet20", scores="sigmoid", epochs=40),
        )
        for data in _IMAGES
    },
)
"""The presets of ``everypair experiment NAME``, by name."""

# For optimisers that scale their steps themselves.
_OPTIMISER_RATES = {"adam": (0.0003, 0.003, 0.03), "lbfgs": (0.1, 0.3, 1.0)}
_MOMENTUM = 10  # a momentum of 0.9 makes steps 10 times larger in the long run


def paper_grid(data: str) -> Grid:
    """Return the grid of the paper: six batch sizes, five seeds, two rates per decade.

    The squared hinge has 7 rates and the other losses 13 (paper, section 4.2).

    >>> len(paper_grid("cifar10").trials())
    2970
    """
    wide = _half_decades(-4, 2)
    rates = {"squared_hinge": _half_decades(-4, -1), "logistic": wide, "aucm": wide}
    batches = (10, 50, 100, 500, 1000, 5000)
    return Grid(data, _PAPER_SHARES, PAPER_LOSSES, batches, (0, 1, 2, 3, 4), rates)


def with_losses(
    grid: Grid, losses: Sequence[str], optimisers: Sequence[str] = (), **rates: Sequence[float]
) -> Grid:
    """Return the grid with other losses or optimisers, and with rates that suit them.

    `optimisers` are for all losses except those that need their own. `rates` are by loss; the
    default is the rates of the grid, or those of the optimiser.

    >>> grid = with_losses(PRESETS["digits"].grid, ["square"], ["momentum"])
    >>> grid.rates_of(grid.cells()[0])
    (0.03, 0.006, 0.15)
    """
    chosen: dict[str, tuple[str, ...]] = {}
    if optimisers:
        chosen = {loss: tuple(optimisers) for loss in losses if default_optimiser(loss) == "sgd"}
    known: Rates = {loss: tuple(given) for loss, given in rates.items() if loss in losses}
    for loss in losses:
        if loss in rates:
            continue
        if loss not in grid.rates:
            raise UserError(
                f"no rates are known for the loss {loss!r} on {grid.data}; name some, for "
                f"example --rate {loss}=0.01,0.1,1"
            )
        known[loss] = grid.rates[loss]
        slowed = tuple(float(f"{rate / _MOMENTUM:.3g}") for rate in known[loss])
        suited = {"momentum": slowed, **_OPTIMISER_RATES}
        known |= {f"{loss}/{o}": suited[o] for o in chosen.get(loss, ()) if o in suited}
    batches = (FULL_BATCH,) if tuple(optimisers) == ("lbfgs",) else grid.batches
    return replace(grid, losses=tuple(losses), rates=known, optimisers=chosen, batches=batches)
