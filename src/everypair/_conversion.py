"""Convert array-likes (lists, Series, CPU tensors, Arrow columns) to NumPy arrays."""

from __future__ import annotations

import sys
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def to_array(given: ArrayLike, name: str) -> NDArray[Any]:
    """Convert an array-like to an ndarray; `name` is the argument that errors mention."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(given, torch.Tensor):
        return _from_torch(given, torch, name)
    if isinstance(given, np.ma.MaskedArray):
        if np.ma.is_masked(given):
            i = int(np.argmax(np.ma.getmaskarray(given)))
            raise ValueError(
                f"{name} must have a value in every row; got a masked one at index {i}. "
                "Drop those rows first, for example with x[~mask]."
            )
        given = given.data
    try:
        array = np.asarray(given)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be an array of n numbers; got {type(given).__name__} that NumPy cannot "
            f"read ({error})."
        ) from None
    # NumPy makes a single object of a sparse matrix, a generator, a set or None.
    if array.ndim == 0 and array.dtype.kind == "O":
        raise ValueError(
            f"{name} must be an array of n values; got {type(given).__name__}. "
            "Pass a list or an array; for a sparse matrix, x.toarray().ravel()."
        )
    return array


def to_real(given: ArrayLike, name: str) -> NDArray[Any]:
    """Convert an array-like of real numbers to an ndarray of a boolean, integer or float type."""
    array = to_array(given, name)
    if array.dtype.kind == "O":
        for i, value in enumerate(array.ravel().tolist()):
            if not isinstance(value, Real) and not hasattr(value, "__float__"):
                raise ValueError(
                    f"{name} must be real numbers; got {value!r} at index {i}. "
                    "Drop such rows, or convert them to numbers first."
                )
        try:
            return array.astype(np.float64)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ValueError(
                f"{name} must be real numbers that a float holds ({error}). Scale them first."
            ) from None
    if array.dtype.kind not in "biuf":
        first = f", first {array.ravel()[0].item()!r}" if array.size else ""
        raise ValueError(
            f"{name} must be real numbers; got an array of {array.dtype}{first}. "
            "Convert it to numbers first: text with a number for each value, dates with "
            ".astype('int64')."
        )
    return array


def to_column(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Reshape an (n,) or (n, 1) array to (n,)."""
    if array.ndim == 1:
        return array
    if array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    raise ValueError(
        f"{name} must have the shape (n,) or (n, 1); got {array.shape}. "
        "Of the probabilities of two classes, pass [:, 1]; for several tasks, call once per column."
    )


def _from_torch(tensor: Any, torch: Any, name: str) -> NDArray[Any]:
    if tensor.device.type != "cpu":
        raise ValueError(
            f"{name} must be on the CPU here; got a tensor on {tensor.device}. "
            "Use everypair.torch, which computes where the tensor is, or pass it as .cpu()."
        )
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:  # NumPy has no bfloat16
        tensor = tensor.float()
    return np.asarray(tensor.resolve_neg().numpy())
