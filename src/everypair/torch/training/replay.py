"""Save and restore the state that a second forward pass needs to repeat the first.

This is the state of random generators, of buffers, and of a DataLoader's samplers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


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
        self._others = [
            (module, arguments, module.get_rng_state(*arguments))
            for module, arguments in map(_device_module, devices)
        ]

    def restore(self) -> None:
        """Restore the saved state of all generators."""
        torch.set_rng_state(self._cpu)
        for module, arguments, state in self._others:
            module.set_rng_state(state, *arguments)


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


def _device_module(device: torch.device) -> tuple[Any, tuple[torch.device, ...]]:
    """Return the module of an accelerator, such as `torch.cuda`, and what its functions take."""
    return getattr(torch, device.type), () if device.type == "mps" else (device,)
