"""The names of losses, optimisers and data sets in reports and on the terminal.

>>> display_name("aucm"), display_name("squared_hinge")
('AUCM', 'squared hinge')
>>> DISPLAY_NAMES["huber"] = "Huber hinge"
>>> display_name("huber")
'Huber hinge'
>>> del DISPLAY_NAMES["huber"]
"""

from __future__ import annotations

from everypair.experiments.registry import Registry

# A table of its own, and no field of the losses and optimisers, so that reports do not need torch.
DISPLAY_NAMES: Registry[str] = Registry(
    "display name",
    {name: name.upper() for name in ("aucm", "solam", "ldam", "smote", "adasyn")}
    | {name: name.upper() for name in ("sgd", "pesg", "sag", "cifar10", "stl10")}
    | {"lbfgs": "L-BFGS", "adam": "Adam", "catdog": "Cat&Dog"}
    | {"lightgbm": "LightGBM", "xgboost": "XGBoost", "catboost": "CatBoost", "mlp": "MLP"},
)
"""Display names that are not the name with spaces for underscores."""


def display_name(name: str) -> str:
    """Return the name that people read for a name of the command line."""
    return DISPLAY_NAMES[name] if name in DISPLAY_NAMES else name.replace("_", " ")
