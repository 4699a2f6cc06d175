"""Images into what a network takes, and the paper's random crops and mirror images, in batches.

A crop, its resizing and its mirror image are linear in the rows and in the columns of an image, so
a batch is two small matrix products: no loop over images, the same on every device, and nothing
that a CUDA graph could not capture once the random numbers are drawn.

>>> images = torch.zeros(5, 3, 32, 32, dtype=torch.uint8)
>>> numbers = draw(5, torch.Generator().manual_seed(0))
>>> apply(images, numbers).shape, prepare(images).unique()
(torch.Size([5, 3, 32, 32]), tensor([-2.]))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["Augmentation", "apply", "draw", "prepare"]

CENTRE, SCALE = 0.5, 0.25
"""About the mean and spread of photographs: constants, so that a model keeps no statistics."""

KEPT = 30 / 32
"""The side of a crop, as a share of the image's (the authors' code: 30 of 32 pixels)."""


@dataclass(frozen=True)
class Augmentation:
    """Which parts of a split are shown in random crops and mirror images.

    Parameters
    ----------
    subtrain : bool
        Crop and mirror the images that are trained on.
    evaluation : bool
        Also those of validation and test, as the authors' code did.
    """

    subtrain: bool = False
    evaluation: bool = False

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return a batch for training: float32, augmented where this data set is."""
        if not self.subtrain:
            return prepare(images)
        return apply(images, draw(len(images), generator, images.device))


def prepare(inputs: Tensor) -> Tensor:
    """Return what a network takes: images as float32 around 0, features as they are.

    >>> prepare(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([-2.,  2.])
    """
    if inputs.dtype != torch.uint8:
        return inputs
    return inputs.to(torch.float32).mul_(1 / (255 * SCALE)).sub_(CENTRE / SCALE)


def draw(
    n: int, generator: torch.Generator | None = None, device: torch.device | str | None = None
) -> Tensor:
    """Return the random numbers of `n` images, (3, n) in [0, 1): row, column and mirror.

    They are drawn where the generator lives and do not depend on the size of the images.
    """
    home = generator.device if generator is not None else device
    return torch.rand(3, n, generator=generator, device=home).to(device or home)


def apply(images: Tensor, numbers: Tensor) -> Tensor:
    """Return each image's crop, resized back (bilinear) and mirrored or not, prepared.

    Parameters
    ----------
    images : (b, c, h, w) uint8
    numbers : (3, b)
        As `draw` returns them, on the same device.
    """
    height, width = images.shape[-2:]
    rows, columns = _crops(height, images.device), _crops(width, images.device)
    down = rows[_place(numbers[0], len(rows))]
    across = columns[_place(numbers[1], len(columns))]
    mirrored = (numbers[2] < 0.5)[:, None, None]
    across = torch.where(mirrored, across.flip(1), across)
    return down[:, None] @ prepare(images) @ across.mT[:, None]


def _place(uniform: Tensor, n: int) -> Tensor:
    # The product may round up to n itself.
    return (uniform * n).long().clamp_(max=n - 1)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _crops(side: int, device: torch.device) -> Tensor:
    """Return one (side, side) matrix for each place of the crop: output pixels from input pixels.

    They are those of bilinear interpolation between pixel centres, repeating the crop's edge. Made
    once for each device, before anything captures a graph that uses them.
    """
    kept = round(side * KEPT)
    centres = (torch.arange(side, dtype=torch.float64) + 0.5) * kept / side - 0.5
    centres = centres.clamp(0, kept - 1)
    tent = (1 - (centres[:, None] - torch.arange(kept)).abs()).clamp(min=0)
    matrices = torch.zeros(side - kept + 1, side, side, dtype=torch.float64)
    for place, matrix in enumerate(matrices):
        matrix[:, place : place + kept] = tent
    return matrices.to(device, torch.float32)
