"""everypair for PyTorch: the loss over all pairs, and tools to train with it.

Import only the names in ``__all__``. The modules of this folder validate tensors, choose a backend
and differentiate the loss; `row_sums` holds sums over all other rows for each row, and losses made
of them; `training` holds samplers, optimisers and monitors; `triton` holds the kernels for NVIDIA
GPUs; `distributed` is the loss over the pairs of all processes, and `collectives` its exchanges.

Importing this package makes the compiled kernel run on torch's threads, for NumPy arrays too: as
many as `torch.get_num_threads` says, unless `everypair.set_num_threads` sets another number.

>>> import torch
>>> from everypair.torch import PairLoss
>>> PairLoss(margin=0.5)(torch.tensor([0.9, 0.2, 0.6]), torch.tensor([1, 0, 0])).item() < 0.03
True
"""

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "everypair.torch needs PyTorch. In a checkout of everypair: pip install '.[torch]'"
    ) from error

from everypair.torch._functional import PairDerivatives, pair_derivatives, pair_loss
from everypair.torch._module import PairLoss
from everypair.torch._sharing import share_with_kernel
from everypair.torch.row_sums.average_precision import AveragePrecisionLoss
from everypair.torch.row_sums.row_sums import pair_row_sums
from everypair.torch.row_sums.soft_ranks import soft_ranks, spearman_loss
from everypair.torch.training.aucm import PESG, AUCMLoss
from everypair.torch.training.large_batch import large_batch_backward
from everypair.torch.training.metric import AUCMetric
from everypair.torch.training.monitor import DivergenceError, DivergenceWarning, EpochMonitor
from everypair.torch.training.sag import SAG
from everypair.torch.training.sampler import StratifiedBatchSampler

share_with_kernel()

__all__ = [
    "PESG",
    "SAG",
    "AUCMLoss",
    "AUCMetric",
    "AveragePrecisionLoss",
    "DivergenceError",
    "DivergenceWarning",
    "EpochMonitor",
    "PairDerivatives",
    "PairLoss",
    "StratifiedBatchSampler",
    "large_batch_backward",
    "pair_derivatives",
    "pair_loss",
    "pair_row_sums",
    "soft_ranks",
    "spearman_loss",
]
