"""Scale a gradient in place by grad_output, which is 1 most of the time and then costs nothing."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from everypair.torch._compat import current_raw_stream as current_stream
from everypair.torch.triton.common.launch import Launched, launch, n_multiprocessors

_BLOCK = 4096
_launched: dict[tuple[object, ...], Launched] = {}


def scale_in_place(grad: Tensor, factor: Tensor) -> Tensor:
    """Multiply a contiguous gradient by a number on its device.

    The kernel reads the number first and returns at once if it is 1: to read and write a large
    gradient once more takes as long as the logistic loss.
    """
    n = grad.numel()
    key = n, grad.dtype, factor.dtype, grad.device
    launched = _launched.get(key)
    at_grad, at_factor = grad.data_ptr(), factor.data_ptr()
    if launched is not None and not (at_grad | at_factor) & 15:
        launched.run(at_grad, at_factor, *launched.values, stream=current_stream(grad.device))
        return grad
    grid = min(2 * n_multiprocessors(grad.device), -(-n // _BLOCK)), 1
    launched = launch(
        scale_unless_one, grid, {"grad": grad, "factor": factor}, {"n": n}, {"BLOCK": _BLOCK},
        num_warps=16, enable_fp_fusion=True,
    )  # fmt: skip
    if launched is not None:
        if len(_launched) >= 1024:
            _launched.clear()
        _launched[key] = launched
    return grad


@triton.jit
def scale_unless_one(grad, factor, n, BLOCK: tl.constexpr):
    """Multiply a gradient by a number, unless that is 1.

    grad, factor  (n,) float, read and written; () float, read
    BLOCK         entries that a program handles at once
    """
    # 1. Read the factor.
    by = tl.load(factor)
    # 2. Scale every BLOCK that belongs to this program.
    if by != 1.0:
        for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
            i = start + tl.arange(0, BLOCK)
            here = tl.load(grad + i, mask=i < n)
            tl.store(grad + i, here * by.to(grad.dtype.element_ty), mask=i < n)
