"""Prepare batches of inputs for a network, with the paper's random crops and mirror images.

To crop, resize and mirror an image is linear in its rows and in its columns, so a batch needs two
small matrix products. There is no loop over images, all devices compute the same, and a CUDA graph
can capture it once the random numbers are drawn.

>>> images = torch.zeros(5, 3, 32, 32, dtype=torch.uint8)
>>> numbers = draw(5, torch.Generator().manual_seed(0))
>>> prepare(images, numbers).shape, prepare(images).unique()
(torch.Size([5, 3, 32, 32]), tensor([-2.]))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

CENTRE, SCALE = 0.5, 0.25
"""Approximate mean and standard deviation of pixels; being constant, they need not be saved."""

KEPT = 30 / 32
"""The side of a crop, relative to the side of the image (the authors' code: 30 of 32 pixels)."""


@dataclass(frozen=True)
class Augmentation:
    """Which parts of a split are randomly cropped and mirrored."""

    subtrain: bool = False  # the batches of the training
    evaluation: bool = False  # all three parts when they are measured, as in the authors' code


def prepare(inputs: Tensor, numbers: Tensor | None = None) -> Tensor:
    """Convert images to float32 around 0, augmented if `numbers` are given; return features as is.

    An augmented image is cropped, resized to its old size (bilinear) and mirrored or not.

    Parameters
    ----------
    inputs : (n, d) float32 or (n, c, h, w) uint8
    numbers : (3, n) tensor, optional
        Random numbers from `draw`, on the same device.

    Examples
    --------
    >>> prepare(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([-2.,  2.])
    """
    if inputs.dtype != torch.uint8:
        return inputs
    scaled = inputs.to(torch.float32).mul_(1 / (255 * SCALE)).sub_(CENTRE / SCALE)
    if numbers is None:
        return scaled
    height, width = inputs.shape[-2:]
    rows, columns = _crops(height, inputs.device), _crops(width, inputs.device)
    down = rows[_place(numbers[0], len(rows))]
    across = columns[_place(numbers[1], len(columns))]
    mirrored = (numbers[2] < 0.5)[:, None, None]
    across = torch.where(mirrored, across.flip(1), across)
    return down[:, None] @ scaled @ across.mT[:, None]


def draw(
    n: int, generator: torch.Generator | None = None, device: torch.device | str | None = None
) -> Tensor:
    """Draw the random numbers of `n` images, (3, n) in [0, 1): row, column and mirror.

    They are drawn on the generator's device and do not depend on the size of the images.
    """
    home = generator.device if generator is not None else device
    return torch.rand(3, n, generator=generator, device=home).to(device or home)


def _place(uniform: Tensor, n: int) -> Tensor:
    # Clamped, because the product may be rounded up to n.
    return (uniform * n).long().clamp_(max=n - 1)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _crops(side: int, device: torch.device) -> Tensor:
    """Return (places, side, side): a matrix from input to output pixels for each place of a crop.

    The matrices interpolate linearly between pixel centres and repeat the edge of the crop. They
    are cached for each device, so that they exist before a CUDA graph that uses them is captured.
    """
    kept = round(side * KEPT)
    centres = (torch.arange(side, dtype=torch.float64) + 0.5) * kept / side - 0.5
    centres = centres.clamp(0, kept - 1)
    tent = (1 - (centres[:, None] - torch.arange(kept)).abs()).clamp(min=0)
    matrices = torch.zeros(side - kept + 1, side, side, dtype=torch.float64)
    for place, matrix in enumerate(matrices):
        matrix[:, place : place + kept] = tent
    return matrices.to(device, torch.float32)
