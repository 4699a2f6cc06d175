"""The private parts of torch that everypair uses, in one place.

Torch has no public functions for these questions. Each one is named here with the reason why it is
asked, so that a change in torch is repaired in this file alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.autograd import Function, forward_ad

Callback = TypeVar("Callback", bound=Callable[..., Any])

# True inside `torch.func` and `torch.vmap`. Their tensors have no memory that a kernel could read.
is_under_functorch = torch._C._are_functorch_transforms_active
# The number of active TorchDispatchModes, such as FakeTensorMode, which must see an operator.
n_dispatch_modes = torch._C._len_torch_dispatch_stack
# True for a batch of vectors in `torch.autograd.grad(..., is_grads_batched=True)`, which has a kind
# of tensor of its own that only registered operators can read.
is_legacy_batched = torch._C._functorch.is_legacy_batchedtensor
# Decorates a function that `torch.compile` must call as it is. The public `torch.compiler.disable`
# loads the compiler when a module is imported; this one does so when the function is called.
skip_compiler = torch._compile._disable_dynamo


def constant_in_graphs(function: Callback) -> Callback:
    """Decorate a function that `torch.compile` calls while it traces, and whose result it keeps.

    `torch.compiler.assume_constant_result` does the same, and loads the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


PLAIN_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
"""The classes of tensors whose operations nobody overrides."""


def is_transformed() -> bool:
    """Return whether `torch.func`, `torch.vmap` or forward mode is active; not while compiling."""
    return is_under_functorch() or forward_ad._current_level >= 0


def needs_operator(tensor: torch.Tensor) -> bool:
    """Return whether someone else must see an operator: a compiler, a mode or a tensor subclass."""
    return (
        torch.compiler.is_compiling() or type(tensor) not in PLAIN_TENSORS or n_dispatch_modes() > 0
    )


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has memory to read, and nothing but autograd sees its operations."""
    return not (needs_operator(tensor) or is_transformed())


def skip_backward_wrapper(function: type[Function]) -> None:
    """Let the engine call `backward` of a function itself, not through a method written in Python.

    That method asks on every call which of `backward` and `vjp` the class defines, which takes as
    long as the kernel for a small batch. The class must define `backward`, and nothing else.
    """
    function._backward_cls.apply = function.backward  # type: ignore[attr-defined]


def current_raw_stream(device: torch.device) -> int:
    """Return the address of the CUDA stream that torch launches on.

    Triton's launcher takes the address; `torch.cuda.current_stream` takes microseconds to wrap it.
    """
    return torch._C._cuda_getCurrentRawStream(device.index)
