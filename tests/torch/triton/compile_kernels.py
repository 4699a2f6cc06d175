"""Compile every Triton kernel for an NVIDIA GPU, on a machine without one.

The interpreter runs code that Triton may refuse to compile. The plans run here on tensors in CPU
memory, and what they would launch is compiled::

    python -m tests.torch.triton.compile_kernels
"""

from __future__ import annotations

import sys
from unittest.mock import patch

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from everypair.torch import pair_loss
from everypair.torch._dispatch import forced
from everypair.torch.triton import buckets, moments, ordered, pairs, sorted_rows
from everypair.torch.triton.common import launch
from everypair.torch.triton.smooth import plan as smooth

MODULES = (buckets, launch, moments, ordered, pairs, smooth, sorted_rows)
TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.int8: "*i8", torch.int32: "*i32",
    torch.int64: "*i64",
}  # fmt: skip
compiled: dict[str, int] = {}


def compile_instead(kernel, grid, tensors, scalars, constants, **options):
    """Compile a kernel for what it would be launched with."""

    def kind(name):
        if name in constants:
            return "constexpr"
        if name in scalars:
            return "i32" if isinstance(scalars[name], int) else "fp32"
        return TYPES[tensors[name].dtype]

    values = {name: getattr(value, "value", value) for name, value in constants.items()}
    source = ASTSource(
        fn=kernel,
        signature={name: kind(name) for name in kernel.arg_names},
        constexprs={name: values[name] for name in kernel.arg_names if name in values},
    )
    options.pop("launch_cooperative_grid", None)
    found = triton.compile(source, target=TARGET, options=options)
    compiled[kernel.fn.__name__] = len(found.asm["cubin"])


def main():
    """Run every plan on a batch."""
    replaced = {
        "launch": compile_instead, "current_stream": lambda device: 0,
        "is_capturing": lambda: False, "n_multiprocessors": lambda device: 132,
    }  # fmt: skip
    patches = [
        patch.object(module, name, value)
        for module in MODULES
        for name, value in replaced.items()
        if hasattr(module, name)
    ]
    rng = np.random.default_rng(0)
    batches = (
        (100, torch.float32, {}),
        (200_000, torch.float32, {}),
        (200_000, torch.float64, {"surrogate": "huber_hinge"}),
        (200_000, torch.float64, {"surrogate": "square"}),
        (200_000, torch.float32, {"surrogate": "logistic"}),
        (5_000, torch.float32, {"pairs": "ordered"}),
    )
    for one in patches:
        one.start()
    with forced("triton"):
        for n, dtype, options in batches:
            scores = torch.tensor(rng.normal(size=n), dtype=dtype).requires_grad_()
            labels = torch.tensor(rng.integers(0, 5 if "pairs" in options else 2, n)).float()
            pair_loss(scores, labels, **options)
    sizes = ", ".join(f"{name} ({size} bytes)" for name, size in compiled.items())
    sys.stdout.write(f"Triton {triton.__version__} compiled {len(compiled)} kernels: {sizes}.\n")


if __name__ == "__main__":
    main()
