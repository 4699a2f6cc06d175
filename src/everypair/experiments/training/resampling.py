"""Training rows with as many positives as negatives: the baselines that sample rows.

>>> part = Part(torch.arange(5.0)[:, None], torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]))
>>> len(drawn(part, 0, n_rare=4, n_common=4)), len(drawn(part, 0, n_rare=1, n_common=1))
(8, 2)
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from everypair.experiments.data.splits import Part
from everypair.experiments.errors import UserError

Resampler = Callable[[Part, int], Part]
"""Takes the subtrain part and a seed, and returns the rows to train on, without groups."""

NEIGHBOURS = 5
"""Of a row in SMOTE and ADASYN; if the rarer class has fewer other rows, all of these."""


def drawn(part: Part, seed: int, *, n_rare: int, n_common: int) -> Part:
    """Draw rows of the rarer and of the commoner class; each row once before any row twice."""
    labels = part.labels.cpu()
    classes = sorted(((labels == y).nonzero().flatten() for y in (0, 1)), key=len)
    generator, rows = torch.Generator().manual_seed(seed), []
    for own, n in zip(classes, (n_rare, n_common), strict=True):
        once = own[torch.randperm(len(own), generator=generator)[:n]]
        again = torch.randint(len(own), (n - len(once),), generator=generator)
        rows += [once, own[again]]
    chosen = torch.cat(rows).to(part.labels.device)
    return Part(part.inputs[chosen], part.labels[chosen])


def oversampling(part: Part, seed: int) -> Part:
    """Return all rows, and copies of rows of the rarer class until both are equally many."""
    n = max(_counts(part))
    return drawn(part, seed, n_rare=n, n_common=n)


def undersampling(part: Part, seed: int) -> Part:
    """Return the rows of the rarer class, and equally many of the other, drawn at random."""
    n = min(_counts(part))
    return drawn(part, seed, n_rare=n, n_common=n)


def smote(part: Part, seed: int) -> Part:
    """Add points between rows of the rarer class and their neighbours in it (Chawla 2002)."""
    return _synthetic("SMOTE", part, k_neighbors=_neighbours(part), random_state=seed % 2**32)


def adasyn(part: Part, seed: int) -> Part:
    """Add such points, more of them where neighbours are of the other class (He 2008)."""
    return _synthetic("ADASYN", part, n_neighbors=_neighbours(part), random_state=seed % 2**32)


def _synthetic(method: str, part: Part, **options: int) -> Part:
    sampler: Any = getattr(import_module("imblearn.over_sampling"), method)(**options)
    inputs = part.inputs.flatten(1).float().cpu()  # the pixels, if they are images
    try:
        rows, labels = sampler.fit_resample(inputs.numpy(), part.labels.cpu().numpy())
    except (ValueError, RuntimeError) as error:  # for example one positive only
        raise UserError(f"{method} cannot add rows here: {error} Take oversampling.") from error
    made = torch.from_numpy(rows).reshape(-1, *part.inputs.shape[1:]).to(part.inputs)
    return Part(made, torch.from_numpy(labels).to(part.labels))


def _counts(part: Part) -> tuple[int, int]:
    n_pos = int(part.labels.sum())
    return n_pos, len(part) - n_pos


def _neighbours(part: Part) -> int:
    return min(NEIGHBOURS, min(_counts(part)) - 1)
