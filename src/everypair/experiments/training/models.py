"""Models that score rows: a network for the kind of data, with or without a final sigmoid.

>>> model = build("mlp", (30,), sigmoid=False, seed=0)
>>> model(torch.zeros(5, 30)).shape
torch.Size([5])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everypair.experiments.errors import UserError
from everypair.experiments.registry import Registry
from everypair.experiments.seeds import isolated

Shape = tuple[int, ...]

HIDDEN = 64
"""Units in each of the two hidden layers of the MLP."""


class Scorer(nn.Module):
    """A network with one output per row and an optional sigmoid; scores have the shape (n,).

    The sigmoid has no weights, so a saved state fits a model with or without it. With `bf16`, the
    network runs under bfloat16 autocast. Weights, the last layer and the scores stay float32.
    """

    def __init__(self, body: nn.Module, *, sigmoid: bool, bf16: bool = False) -> None:
        super().__init__()
        self.body, self.sigmoid, self.bf16 = body, sigmoid, bf16

    def forward(self, inputs: Tensor) -> Tensor:
        """Return one score per row; larger means more positive."""
        # No cache: every weight is used once, and a captured graph must cast it in each replay.
        with torch.autocast(inputs.device.type, torch.bfloat16, self.bf16, cache_enabled=False):
            scores = cast("Tensor", self.body(inputs)).flatten()
        return scores.sigmoid() if self.sigmoid else scores

    def extra_repr(self) -> str:
        """Show in the printed module whether it ends in a sigmoid."""
        return f"sigmoid={self.sigmoid}"


class LastLayer(nn.Linear):
    """A linear layer that computes in float32 under autocast: bfloat16 scores would have ties."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, (n, 1) float32."""
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


def linear(shape: Shape) -> nn.Module:
    """Return a linear model: one weight for each input, and an intercept."""
    return nn.Sequential(nn.Flatten(), LastLayer(math.prod(shape), 1))


def mlp(shape: Shape) -> nn.Module:
    """Return a network with two hidden layers."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        LastLayer(HIDDEN, 1),
    )


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation that does not count its batches: the count is one more kernel a layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised activations; in training mode update the running moments."""
        moments = self.running_mean, self.running_var
        return F.batch_norm(
            x,
            *moments,
            self.weight,
            self.bias,
            self.training,
            cast("float", self.momentum),
            self.eps,
        )


class _CastTogether(torch.autograd.Function):
    """Cast float32 tensors to another type with one kernel for all; their gradients likewise."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        copies = [torch.empty_like(x, dtype=dtype) for x in tensors]
        torch._foreach_copy_(copies, tensors)
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        copies = [torch.empty_like(x, dtype=torch.float32) for x in grads]
        torch._foreach_copy_(copies, grads)
        return (None, *copies)


def _autocast_together(weights: list[Tensor]) -> Sequence[Tensor]:
    """Cast weights as autocast would, but all at once. A compiler does that by itself."""
    device = weights[0].device.type
    if not torch.is_autocast_enabled(device) or torch.compiler.is_compiling():
        return weights
    dtype = torch.get_autocast_dtype(device)
    return cast("tuple[Tensor, ...]", _CastTogether.apply(dtype, *weights))  # type: ignore[no-untyped-call]


class Block(nn.Module):
    """Two convolutions in parallel with a shortcut without weights (He et al., 2016, option A)."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)
        self.norm1 = BatchNorm(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.norm2 = BatchNorm(n_out)
        self.stride, self.n_new = stride, n_out - n_in

    def forward(self, x: Tensor, weights: Sequence[Tensor] = ()) -> Tensor:
        """Return the ReLU of the input plus its two convolutions; `weights` are casts of theirs."""
        weight1, weight2 = weights or (self.conv1.weight, self.conv2.weight)
        y = F.conv2d(x, weight1, stride=self.stride, padding=1)
        y = F.conv2d(F.relu_(self.norm1(y)), weight2, padding=1)
        if self.n_new:
            x = x[:, :, :: self.stride, :: self.stride]
            x = F.pad(x, (0, 0, 0, 0, self.n_new // 2, self.n_new - self.n_new // 2))
        return F.relu_(self.norm2(y) + x)


class ResNet20(nn.Module):
    """The residual network of 20 layers for small images (He et al., 2016, section 4.2).

    Three stages of three blocks, with 16, 32 and 64 channels, then the mean over the image. Images
    may have any size from 8 x 8 on.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)
        self.conv = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.norm = BatchNorm(widths[0])
        self.blocks = nn.Sequential(*(Block(n, m, 1 if n == m else 2) for n, m in pairwise(widths)))
        self.last = LastLayer(widths[-1], 1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight)
        # Channels-last memory saves a quarter of the time on a CPU.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        """Return one score for each image of (n, channels, height, width)."""
        blocks = [cast("Block", block) for block in self.blocks]
        layers = [self.conv, *(layer for b in blocks for layer in (b.conv1, b.conv2))]
        weight, *others = _autocast_together([layer.weight for layer in layers])
        x = F.relu_(self.norm(F.conv2d(images, weight, padding=1)))
        for place, block in enumerate(blocks):
            x = block(x, others[2 * place : 2 * place + 2])
        return cast("Tensor", self.last(x.mean((2, 3))))


def resnet20(shape: Shape) -> nn.Module:
    """Return the paper's network for images."""
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise UserError(
            f"model resnet20 needs images of at least 8 x 8 pixels; got inputs of the shape "
            f"{shape}. Choose linear or mlp."
        )
    return ResNet20(shape[0])


MODELS: Registry[Callable[[Shape], nn.Module]] = Registry(
    "model", {"linear": linear, "mlp": mlp, "resnet20": resnet20}
)
"""By name: a function that takes the shape of one input and returns the network of a `Scorer`."""


def build(name: str, input_shape: Shape, *, sigmoid: bool, seed: int, bf16: bool = False) -> Scorer:
    """Build a model of `MODELS` whose weights follow from the seed; global generators stay.

    `input_shape` is the shape of one row: (columns,), or (channels, height, width). UserError is
    raised if the name is unknown, or the model does not accept inputs of this shape.
    """
    make = MODELS.find(name)
    with isolated(seed, torch.device("cpu")):
        return Scorer(make(tuple(input_shape)), sigmoid=sigmoid, bf16=bf16)
