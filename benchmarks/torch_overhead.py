"""Time of PairLoss, forward and backward, relative to BCE."""

from __future__ import annotations

from torch import nn

from benchmarks.contenders import BCE, Call, Contender, with_autograd
from benchmarks.harness import powers_of_ten, suite
from benchmarks.inputs import batch
from everypair.torch import PairLoss

PAIR_LOSS = Contender("everypair.torch", "squared_hinge")
MODULES = {BCE: nn.BCEWithLogitsLoss, PAIR_LOSS: PairLoss}


# Batches of these sizes are common in training, and show the overhead around the kernel.
SIZES = (16, 400, 1500, 5000, *powers_of_ten(2, 7))


@suite("torch", contenders=MODULES, threads=(1, 2), positives=(0.5, 0.01), n=sorted(SIZES))
def torch_overhead(contender: Contender, n: int, positives: float, threads: int) -> Call:
    return with_autograd(batch(n, positives), MODULES[contender]())
