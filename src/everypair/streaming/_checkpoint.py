"""Write and read the state of an accumulator: arrays and plain values, never code."""

from __future__ import annotations

import json
import os
import secrets
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FORMAT = "everypair.PairAccumulator 1"


def write(path: str | Path, plain: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Write a state; the file has the old content or the new one at any moment."""
    path = Path(path)
    text = json.dumps({"format": _FORMAT, **plain}).encode()
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(temporary, "wb") as file:
            everything: dict[str, Any] = {"state": np.frombuffer(text, np.uint8), **arrays}
            np.savez(file, **everything)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read a state; raise ValueError if the file holds none, or is damaged."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        plain = json.loads(arrays.pop("state").tobytes())
        if plain.pop("format") == _FORMAT:
            return plain, arrays
        reason = "it was written by another version"
    except (AttributeError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        reason = str(error) or type(error).__name__
    raise ValueError(
        f"{path} must be a checkpoint of a PairAccumulator; it is not ({reason}). Load a file that "
        "PairAccumulator.save wrote."
    )
