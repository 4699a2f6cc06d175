"""Flip labels, and train one model for each noise level and learning rate side by side.

A column of scores is a model of its own: the columns of one training are all combinations of a
noise level and a learning rate. They share the features and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import everypair as ep
from studies.evidence import Part
from studies.label_noise.losses import Loss

NOISE = (0.0, 0.1, 0.2, 0.3, 0.4)  # the share of training and validation labels that are flipped
STEPS = (16, 64, 256)  # scores are compared after these numbers of full-batch steps
HIDDEN = 16


class Found(NamedTuple):
    """The best rate and number of steps by the noisy validation AUC, and the clean test AUC.

    `test_clean_choice` is the clean test AUC if validation labels without flips had chosen.
    """

    noise: float
    rate: float
    steps: int
    valid: float
    test: float
    test_clean_choice: float


class Linear(nn.Module):
    """A linear scorer with an intercept per column; all weights start at 0.

    The weights are `rates` times the parameters. The steps of Adam do not depend on the scale of
    the gradient, so Adam with rate 1 on the parameters is Adam with `rates` on the weights.
    """

    def __init__(self, n_features: int, rates: Tensor) -> None:
        super().__init__()
        self.rates = rates
        self.slope = nn.Parameter(torch.zeros(n_features, len(rates)))
        self.intercept = nn.Parameter(torch.zeros(len(rates)))

    def forward(self, features: Tensor) -> Tensor:
        return torch.addmm(self.rates * self.intercept, features, self.rates * self.slope)


class Network(nn.Module):
    """A network with one hidden layer of ReLUs per column; the columns start from equal weights."""

    def __init__(self, n_features: int, rates: Tensor, seed: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        hidden = torch.randn(n_features, 1, HIDDEN, generator=random) / n_features**0.5
        output = torch.randn(1, HIDDEN, generator=random) / HIDDEN**0.5
        self.rates = rates[:, None]
        self.hidden = nn.Parameter(hidden / self.rates)
        self.bias = nn.Parameter(torch.zeros(len(rates), HIDDEN))
        self.output = nn.Parameter(output / self.rates)
        self.intercept = nn.Parameter(torch.zeros(len(rates)))

    def forward(self, features: Tensor) -> Tensor:
        bias, hidden = self.rates * self.bias, self.rates * self.hidden
        inner = torch.addmm(bias.flatten(), features, hidden.flatten(1)).relu()
        inner = inner.unflatten(1, bias.shape) * (self.rates * self.output)
        return inner.sum(2) + self.rates[:, 0] * self.intercept


class Model(NamedTuple):
    """How a model is made, the learning rates that every loss tries, and the number of splits."""

    build: Callable[[int, Tensor, int], nn.Module]
    rates: tuple[float, ...]
    splits: int


MODELS = {
    "linear": Model(lambda d, rates, _: Linear(d, rates), (0.01, 0.03, 0.1, 0.3, 1.0), 10),
    "network": Model(Network, (0.001, 0.003, 0.01, 0.03, 0.1), 5),
}


def flip(y: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Return the labels with exactly this share of all rows flipped, whatever their class.

    With the same seed, the rows of a smaller share are among those of a larger one.
    """
    order = np.random.default_rng(seed).permutation(len(y))
    flipped = y.copy()
    chosen = order[: round(share * len(y))]
    flipped[chosen] = 1 - flipped[chosen]
    return flipped


def standardise(train: Part, *others: Part) -> list[Tensor]:
    """Return features with mean 0 and variance 1 over the training rows; constants become 0."""
    centre, spread = train.X.mean(0), train.X.std(0)
    spread[spread == 0] = np.inf
    return [torch.from_numpy((part.X - centre) / spread) for part in (train, *others)]


def aucs(scores: Tensor, labels: np.ndarray) -> np.ndarray:
    """Return the AUC of each column; scores that are not finite have that of chance."""
    columns = scores.double().T.numpy()
    return np.array(
        [
            ep.auc(s, y) if np.isfinite(s).all() else 0.5
            for s, y in zip(columns, labels.T, strict=True)
        ]
    )


def train(model: str, loss: Loss, parts: tuple[Part, Part, Part], seed: int) -> list[Found]:
    """Train on flipped labels; for each noise level choose by noisy validation AUC."""
    fit, valid, test = parts
    features = standardise(*parts)
    build, rates, _ = MODELS[model]

    def noisy(y: np.ndarray, seed: int) -> np.ndarray:
        return np.repeat(np.stack([flip(y, share, seed) for share in NOISE], 1), len(rates), 1)

    labels = torch.from_numpy(noisy(fit.y, 2 * seed).astype(np.float32))
    noisy_valid = noisy(valid.y, 2 * seed + 1)
    clean_valid, clean_test = (
        np.repeat(part.y[:, None], labels.shape[1], 1) for part in (valid, test)
    )
    scorer = build(features[0].shape[1], torch.tensor(rates * len(NOISE)), seed)
    optimiser = torch.optim.Adam(scorer.parameters(), lr=1.0)
    decay = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / STEPS[-1])
    measured = []
    for step in range(1, STEPS[-1] + 1):
        optimiser.zero_grad()
        loss(scorer(features[0]), labels).sum().backward()
        optimiser.step()
        decay.step()
        if step in STEPS:
            with torch.no_grad():
                by_valid, by_test = scorer(features[1]), scorer(features[2])
            labelled = ((by_valid, noisy_valid), (by_valid, clean_valid), (by_test, clean_test))
            measured.append([aucs(scores, y) for scores, y in labelled])
    by_step = np.array(measured).reshape(len(STEPS), 3, len(NOISE), len(rates))
    found = []
    for k, share in enumerate(NOISE):
        noisy_auc, clean_auc, test_auc = by_step[:, :, k].swapaxes(0, 1)
        best = step, rate = np.unravel_index(noisy_auc.argmax(), noisy_auc.shape)
        by_clean = test_auc.flat[clean_auc.argmax()]
        found.append(
            Found(share, rates[rate], STEPS[step], noisy_auc[best], test_auc[best], by_clean)
        )
    return found
