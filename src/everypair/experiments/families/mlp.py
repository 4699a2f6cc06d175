"""A network with two hidden layers, trained with Adam on stratified batches."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.experiments.families.family import Family, Fit, Floats

LEAST, MOST = 32, 500
"""Bounds for the rows in a batch, which are a twentieth of all rows. Batches are stratified."""

_WEIGHTS = "mlp.pt"


@dataclass(frozen=True)
class MlpScorer:
    """The network with its weights at the end of one epoch."""

    state: Mapping[str, Any]
    n_features: int

    def __call__(self, X: NDArray[np.float32]) -> Floats:
        """Return one score per row, (n,)."""
        import torch

        from everypair.experiments.training import models

        network = models.build("mlp", (self.n_features,), sigmoid=False, seed=0)
        network.load_state_dict(dict(self.state))
        with torch.no_grad():
            return np.asarray(network(torch.from_numpy(X)).numpy(), np.float64)

    def files(self) -> dict[str, bytes]:
        """Return the weights in torch's format, which is loaded with ``weights_only=True``."""
        import torch

        buffer = io.BytesIO()
        torch.save(dict(self.state), buffer)
        return {_WEIGHTS: buffer.getvalue()}


def load(files: Mapping[str, bytes]) -> MlpScorer:
    """Make the scorer from its file."""
    import torch

    state = torch.load(io.BytesIO(files[_WEIGHTS]), map_location="cpu", weights_only=True)
    return MlpScorer(state, next(iter(state.values())).shape[1])


def fit(task: Fit) -> list[MlpScorer]:
    """Train to the largest number of epochs of the path, and keep the weights at each of them."""
    import torch

    from everypair.experiments.training import models
    from everypair.torch import PairLoss, StratifiedBatchSampler

    rows = task.rows
    X, y = torch.from_numpy(rows.X), torch.from_numpy(rows.y.astype(np.float32))
    groups = None if rows.groups is None else torch.from_numpy(rows.groups)
    network = models.build("mlp", (X.shape[1],), sigmoid=False, seed=task.seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=task.parameters["rate"])
    pair_loss, logistic = PairLoss(surrogate="logistic"), torch.nn.BCEWithLogitsLoss()
    size = min(max(LEAST, len(rows) // 20), MOST, len(rows))
    batches = StratifiedBatchSampler(y, batch_size=size, seed=task.seed)
    found = {}
    for epoch in range(1, int(max(task.path)) + 1):
        for batch in batches:
            scores, labels = network(X[batch]), y[batch]
            if task.loss == "pairs":
                inside = None if groups is None else groups[batch]
                loss = pair_loss(scores, labels, groups=inside)
            else:
                loss = logistic(scores, labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if epoch in task.path:
            state = {name: value.clone() for name, value in network.state_dict().items()}
            found[epoch] = MlpScorer(state, X.shape[1])
    return [found[int(epochs)] for epochs in task.path]


FAMILY = Family(
    package="torch",
    losses=("logistic", "pairs"),
    space=((("rate", 0.001),), (("rate", 0.01),)),
    path_name="epochs",
    path=(5, 10, 20, 40),
    fit=fit,
    load=load,
    random=True,
)
