"""Convert array-likes (lists, Series, CPU tensors, Arrow columns) to NumPy arrays."""

from __future__ import annotations

import sys
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_WHOLE = 2.0**53  # below it, float64 holds all whole numbers


def to_array(values: ArrayLike, name: str) -> NDArray[Any]:
    """Convert an array-like to an ndarray; `name` is the argument that errors mention."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        return _from_torch(values, torch, name)
    if isinstance(values, np.ma.MaskedArray):
        if np.ma.is_masked(values):
            i = int(np.argmax(np.ma.getmaskarray(values)))
            raise ValueError(
                f"{name} must have a value in every row; got a masked one at index {i}. "
                "Drop those rows first, for example with x[~mask]."
            )
        values = values.data
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be an array of n numbers; got {type(values).__name__} that NumPy cannot "
            f"read ({error})."
        ) from None
    # NumPy makes a single object of a sparse matrix, a generator, a set or None.
    if array.ndim == 0 and array.dtype.kind == "O":
        raise ValueError(
            f"{name} must be an array of n values; got {type(values).__name__}. "
            "Pass a list or an array; for a sparse matrix, x.toarray().ravel()."
        )
    return array


def to_real(data: ArrayLike, name: str) -> NDArray[Any]:
    """Convert an array-like of real numbers to an ndarray of a boolean, integer or float type."""
    array = to_array(data, name)
    if array.dtype.kind == "O":
        values = array.ravel().tolist()
        for i, value in enumerate(values):
            if not isinstance(value, Real) and not hasattr(value, "__float__"):
                raise ValueError(
                    f"{name} must be real numbers; got {value!r} at index {i}. "
                    "Drop such rows, or convert them to numbers first."
                )
        try:
            floats = array.astype(np.float64)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ValueError(
                f"{name} must be real numbers that a float holds ({error}). Scale them first."
            ) from None
        _check_whole_numbers(values, floats, name)
        return floats
    if array.dtype.kind not in "biuf":
        first = f", first {array.ravel()[0].item()!r}" if array.size else ""
        raise ValueError(
            f"{name} must be real numbers; got an array of {array.dtype}{first}. "
            "Convert it to numbers first: text with a number for each value, dates with "
            ".astype('int64')."
        )
    if isinstance(data, list | tuple) and array.dtype.kind == "f" and (abs(array) >= _WHOLE).any():
        # Beside floats, NumPy has rounded whole numbers to floats.
        _check_whole_numbers(np.array(data, object).ravel(), array, name)
    return array


def to_float64(column: NDArray[Any], name: str) -> NDArray[np.float64]:
    """Convert (n,) real numbers to float64; raise if whole numbers would be rounded."""
    floats = column.astype(np.float64, copy=False)
    if column.dtype.kind in "iu" and column.dtype.itemsize == 8:
        _check_whole_numbers(column, floats, name)
    return floats


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


def _check_whole_numbers(values: Any, floats: NDArray[Any], name: str) -> None:
    """Raise if a whole number among the values is not equal to its float."""
    for i in np.flatnonzero(abs(floats.ravel()) >= _WHOLE):
        value, number = values[i], float(floats.ravel()[i])
        if isinstance(value, Integral) and int(value) != number:
            raise ValueError(
                f"{name} must be numbers that float64 holds; got {int(value)} (first at index "
                f"{i}), which would become {number:.0f}. Subtract a whole number near them, or "
                "pass ranks: numpy.unique(values, return_inverse=True)[1]."
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
