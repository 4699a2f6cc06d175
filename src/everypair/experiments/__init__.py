"""Compare losses on the paper's data or on a table of your own, from the command line or Python.

The names below are public; import them from here, for example in a file that
``EVERYPAIR_EXTENSIONS`` names. They are loaded on first use, so that importing this package does
not import torch. Modules in the folders below may move between versions. A table maps names to
entries, and you can add entries to it.

====================================================  =============================================
Names                                                 Meaning
====================================================  =============================================
`OBJECTIVES`, `Objective`, `pairs`                    table of losses
`MODELS`                                              table of networks
`FAMILIES`, `Family`                                  table of families of models for tables
`OPTIMISERS`, `Optimiser`, `TrainingTask`             table of optimisers
`SOURCES`, `Dataset`, `register_dataset`              table of data sets
`PRESETS`, `Preset`, `Grid`, `paper_grid`             table of grids for ``everypair experiment``
`DISPLAY_NAMES`                                       table of names in reports
`Cell`, `Trial`, `Settings`, `TableFile`, `Record`    descriptions of a trial and of its result
`load_dataset`, `split`                               load data; make subtrain, validation and test
`train`                                               train one model
`save_model`, `load_model`, `SavedModel`              a trained model in a file
`open_store`, `run_trials`, `Training`                a whole grid, in worker processes
`read_predictions`, `evaluate_predictions`            exact AUC and losses of a file
`geometry`                                            coefficients of the paper's figure 1
`UserError`                                           an error that the user can correct
====================================================  =============================================

Folders, each of which imports only from those before it: `data` (data sets and splits), `training`
(one trial of a network), `families` (models for tables), `contenders` (their contest), `search`
(many trials), `report`, `figures` (commands without a store) and `commands`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everypair.experiments.data.sources import SOURCES, Dataset
    from everypair.experiments.data.sources import load as load_dataset
    from everypair.experiments.data.sources import register as register_dataset
    from everypair.experiments.data.splits import split
    from everypair.experiments.display_names import DISPLAY_NAMES
    from everypair.experiments.errors import UserError
    from everypair.experiments.families import FAMILIES, Family
    from everypair.experiments.figures.evaluation import evaluate as evaluate_predictions
    from everypair.experiments.figures.evaluation import read as read_predictions
    from everypair.experiments.figures.geometry import geometry
    from everypair.experiments.plan import Cell, Grid, Record, Settings, TableFile, Trial
    from everypair.experiments.presets import PRESETS, Preset, paper_grid
    from everypair.experiments.search.runner import run as run_trials
    from everypair.experiments.search.store import open as open_store
    from everypair.experiments.search.work import Training
    from everypair.experiments.training.models import MODELS
    from everypair.experiments.training.objectives import OBJECTIVES, Objective, pairs
    from everypair.experiments.training.optimisers import OPTIMISERS, Optimiser, TrainingTask
    from everypair.experiments.training.saved import SavedModel
    from everypair.experiments.training.saved import load as load_model
    from everypair.experiments.training.saved import save as save_model
    from everypair.experiments.training.trial import train

__all__ = ["DISPLAY_NAMES", "FAMILIES", "MODELS", "OBJECTIVES", "OPTIMISERS", "PRESETS", "SOURCES"]
__all__ += ["Cell", "Grid", "Record", "Settings", "TableFile", "TrainingTask", "Trial", "UserError"]
__all__ += [
    "Dataset",
    "Family",
    "Objective",
    "Optimiser",
    "Preset",
    "SavedModel",
    "Training",
    "pairs",
]
__all__ += ["evaluate_predictions", "geometry", "load_dataset", "load_model", "open_store"]
__all__ += ["paper_grid", "read_predictions", "register_dataset", "run_trials", "save_model"]
__all__ += ["split", "train"]

# Module -> its public names; "a=b" offers the module's b under the name a.
_MODULES = {
    "data.sources": "SOURCES Dataset load_dataset=load register_dataset=register",
    "data.splits": "split",
    "display_names": "DISPLAY_NAMES",
    "errors": "UserError",
    "families": "FAMILIES Family",
    "figures.evaluation": "evaluate_predictions=evaluate read_predictions=read",
    "figures.geometry": "geometry",
    "plan": "Cell Grid Record Settings TableFile Trial",
    "presets": "PRESETS Preset paper_grid",
    "search.runner": "run_trials=run",
    "search.store": "open_store=open",
    "search.work": "Training",
    "training.models": "MODELS",
    "training.objectives": "OBJECTIVES Objective pairs",
    "training.optimisers": "OPTIMISERS Optimiser TrainingTask",
    "training.saved": "SavedModel load_model=load save_model=save",
    "training.trial": "train",
}
_SOURCE = {
    public: (module, original or public)
    for module, names in _MODULES.items()
    for public, _, original in (name.partition("=") for name in names.split())
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name not in _SOURCE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, original = _SOURCE[name]
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), original)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
