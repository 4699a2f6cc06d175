"""everypair for PyTorch.

>>> import torch
>>> from everypair.torch import PairLoss
>>> PairLoss(margin=0.5)(torch.tensor([0.9, 0.2, 0.6]), torch.tensor([1, 0, 0])).item() < 0.03
True
"""

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "everypair.torch needs PyTorch. Install it with: pip install everypair[torch]"
    ) from error

from everypair.torch._aucm import AUCMLoss
from everypair.torch._functional import PairDerivatives, pair_derivatives, pair_loss
from everypair.torch._large_batch import large_batch_backward
from everypair.torch._lightning import lightning_callback
from everypair.torch._module import PairLoss
from everypair.torch._monitor import DivergenceError, DivergenceWarning, EpochMonitor
from everypair.torch._pesg import PESG
from everypair.torch._sag import SAG
from everypair.torch._sampler import StratifiedBatchSampler
from everypair.torch._team import share_threads

share_threads()

__all__ = [
    "PESG",
    "SAG",
    "AUCMLoss",
    "DivergenceError",
    "DivergenceWarning",
    "EpochMonitor",
    "PairDerivatives",
    "PairLoss",
    "StratifiedBatchSampler",
    "large_batch_backward",
    "lightning_callback",
    "pair_derivatives",
    "pair_loss",
]
