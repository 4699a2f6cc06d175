"""What people call losses, optimisers and data sets, in reports and on the terminal.

>>> label("aucm"), label("squared_hinge")
('AUCM', 'squared hinge')
>>> LABELS["huber"] = "Huber hinge"
>>> label("huber")
'Huber hinge'
>>> del LABELS["huber"]
"""

from __future__ import annotations

from everypair.experiments.registry import Registry

__all__ = ["LABELS", "label"]

# Not part of the losses and optimisers themselves, so that a report does without torch.
LABELS: Registry[str] = Registry(
    "label",
    {
        "aucm": "AUCM",
        "sgd": "SGD",
        "pesg": "PESG",
        "sag": "SAG",
        "lbfgs": "L-BFGS",
        "adam": "Adam",
        "cifar10": "CIFAR10",
        "stl10": "STL10",
        "catdog": "Cat&Dog",
    },
)
"""Names that are not simply their words."""


def label(name: str) -> str:
    """Return what a name of the command line is called."""
    return LABELS[name] if name in LABELS else name.replace("_", " ")
