"""Write and read the state of an accumulator: arrays and plain values, never code."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Arrays = dict[str, NDArray[Any]]

_T = TypeVar("_T")
_FORMAT = "everypair.PairAccumulator 2"
_LARGEST = np.finfo(np.float64).max


def write(path: str | Path, plain: dict[str, Any], arrays: Arrays) -> None:
    """Write a state; the file has the old content or the new one at any moment."""
    path = Path(path)
    text = json.dumps({"format": _FORMAT, "arrays": list(arrays), **plain}).encode()
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(temporary, "wb") as file:
            contents: dict[str, Any] = {"state": np.frombuffer(text, np.uint8), **arrays}
            np.savez(file, **contents)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: str | Path, build: Callable[[dict[str, Any], Arrays], _T]) -> _T:
    """Read a state and build its object; raise ValueError if the file is damaged."""
    with open(path, "rb") as stream:
        try:
            with np.load(stream, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            plain = json.loads(arrays.pop("state").tobytes())
            if plain.pop("format") != _FORMAT:
                raise ValueError("it was written by another version")
            if plain.pop("arrays") != list(arrays):
                raise ValueError("an array is missing")
            return build(plain, arrays)
        # A damaged archive raises errors of zipfile, zlib, struct, tokenize, NumPy and others.
        except Exception as error:
            reason = str(error) or type(error).__name__
    raise ValueError(
        f"{path} must be a checkpoint of a PairAccumulator; it is not ({reason}). Load a file that "
        "PairAccumulator.save wrote."
    )


def require(
    name: str,
    array: NDArray[Any],
    dtypes: Collection[Any],
    shape: tuple[int, ...],
    low: ArrayLike = -_LARGEST,
    high: ArrayLike = _LARGEST,
) -> None:
    """Raise ValueError unless an array has a type, a shape, and numbers from `low` to `high`."""
    if array.dtype not in dtypes or array.shape != shape:
        raise ValueError(f"its {name} have type {array.dtype} and shape {array.shape}")
    if not ((array >= low) & (array <= high)).all():
        raise ValueError(f"its {name} are out of range")
