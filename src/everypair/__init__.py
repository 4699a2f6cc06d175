"""Losses and metrics over all (positive, negative) pairs, in O(n log n) time.

>>> import everypair as ep
>>> loss, grad = ep.pair_loss_and_grad([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0])
>>> loss, grad.tolist()
(0.625, [-1.0, 0.0, 0.25, 0.75])
>>> ep.auc([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0])
0.75
"""

from importlib import import_module
from typing import Any

from everypair import naive, paper, surrogates
from everypair._version import __version__
from everypair.kernel.choose import get_backend
from everypair.kernel.threads import get_num_threads, set_num_threads
from everypair.losses import (
    PairDerivatives,
    pair_derivatives,
    pair_hvp,
    pair_loss,
    pair_loss_and_grad,
)
from everypair.metrics import (
    DeLong,
    DeLongTest,
    RocCurve,
    auc,
    average_precision,
    delong,
    delong_test,
    partial_auc,
    roc_curve,
)
from everypair.row_sums import pair_row_sums, soft_ranks
from everypair.streaming import PairAccumulator, StreamResult, evaluate_twice
from everypair.surrogates import Surrogate, Term

__all__ = [
    "DeLong",
    "DeLongTest",
    "PairAccumulator",
    "PairDerivatives",
    "RocCurve",
    "StreamResult",
    "Surrogate",
    "Term",
    "__version__",
    "auc",
    "average_precision",
    "delong",
    "delong_test",
    "evaluate_twice",
    "get_backend",
    "get_num_threads",
    "load",
    "naive",
    "pair_derivatives",
    "pair_hvp",
    "pair_loss",
    "pair_loss_and_grad",
    "pair_row_sums",
    "paper",
    "partial_auc",
    "roc_curve",
    "set_num_threads",
    "soft_ranks",
    "surrogates",
]


def load(path: Any) -> Any:
    """Load a model that ``everypair experiment`` saved.

    Needs the packages of ``everypair[experiments]``. Loading runs no code from the file.

    Parameters
    ----------
    path : str or Path
        The model (``model.zip`` of a table, ``model.pt`` of a network), or the experiment's folder.

    Returns
    -------
    model
        With ``predict_scores(frame)`` and ``predict_proba(frame)``, one number per row, (n,), and
        ``describe()``, a text.
    """
    # Loaded by name: the core does not depend on the experiments.
    return import_module("everypair.experiments.contenders").load(path)
