"""Save and restore the state that a second forward pass needs to repeat the first.

This is the state of random generators, of buffers, and of a DataLoader's samplers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["LoaderState", "RandomState", "accelerators", "restored_buffers"]


class RandomState:
    """The saved state of torch's generators, of the CPU and of some accelerators.

    Examples
    --------
    >>> import torch
    >>> saved = RandomState([])
    >>> first = torch.rand(3)
    >>> saved.restore()
    >>> torch.equal(torch.rand(3), first)
    True
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._cpu = torch.get_rng_state()
        self._others = [(device, _device_generator(device).get_state()) for device in devices]

    def restore(self) -> None:
        """Restore the saved state of all generators."""
        torch.set_rng_state(self._cpu)
        for device, state in self._others:
            _device_generator(device).set_state(state)


class LoaderState:
    """The saved state of a DataLoader: its generators, and its samplers that have a state_dict."""

    def __init__(self, loader: object) -> None:
        parts = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
        generators = [getattr(part, "generator", None) for part in parts]
        self._generators = [
            (generator, generator.get_state())
            for generator in generators
            if isinstance(generator, torch.Generator)
        ]
        self._samplers: list[tuple[Any, Any]] = [
            (part, part.state_dict())
            for part in parts[1:]
            if hasattr(part, "state_dict") and hasattr(part, "load_state_dict")
        ]

    def restore(self) -> None:
        """Make the next pass over the loader give the same batches again."""
        for generator, state in self._generators:
            generator.set_state(state)
        for sampler, state in self._samplers:
            sampler.load_state_dict(state)


def accelerators(model: nn.Module, *more: torch.device | None) -> list[torch.device]:
    """Return the accelerators among the devices of a model and `more`."""
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    devices |= {device for device in more if device is not None}
    return [device for device in devices if device.type not in ("cpu", "meta")]


@contextmanager
def restored_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the values of all buffers at the end of the block."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in before:
                    buffer.copy_(before[name])


def _device_generator(device: torch.device) -> Any:
    """Return the default generator of an accelerator."""
    module = getattr(torch, device.type)
    if device.type == "mps":
        return _Mps()
    index = module.current_device() if device.index is None else device.index
    return module.default_generators[index]


class _Mps:
    """The generator of Apple's GPUs, for which torch has functions only."""

    def get_state(self) -> Tensor:
        return torch.mps.get_rng_state()

    def set_state(self, state: Tensor) -> None:
        torch.mps.set_rng_state(state)
