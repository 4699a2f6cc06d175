"""Save the state that a second forward pass needs to repeat the first.

This is the state of random generators, of buffers, and of a DataLoader's samplers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn


def saved_random_state(model: nn.Module, device: torch.device | None) -> Callable[[], None]:
    """Save torch's generators of the CPU and of the model's accelerators; return how to restore.

    Examples
    --------
    >>> import torch
    >>> restore = saved_random_state(torch.nn.Linear(2, 1), None)
    >>> first = torch.rand(3)
    >>> restore()
    >>> torch.equal(torch.rand(3), first)
    True
    """
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if device is not None:
        devices.add(device)
    setters = [partial(torch.set_rng_state, torch.get_rng_state())]
    for accelerator in devices:
        if accelerator.type not in ("cpu", "meta"):
            module: Any = getattr(torch, accelerator.type)  # for example torch.cuda
            where = () if accelerator.type == "mps" else (accelerator,)
            setters.append(partial(module.set_rng_state, module.get_rng_state(*where), *where))
    return partial(_call_all, setters)


def saved_loader_state(loader: object) -> Callable[[], None]:
    """Save the generators of a DataLoader and its samplers that have a state_dict.

    The function returned makes the next pass over the loader give the same batches again.
    """
    setters: list[partial[Any]] = []
    for name in (None, "sampler", "batch_sampler"):
        part: Any = loader if name is None else getattr(loader, name, None)
        generator = getattr(part, "generator", None)
        if isinstance(generator, torch.Generator):
            setters.append(partial(generator.set_state, generator.get_state()))
        if name and hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
            setters.append(partial(part.load_state_dict, part.state_dict()))
    return partial(_call_all, setters)


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


def _call_all(functions: list[partial[Any]]) -> None:
    for function in functions:
        function()
