"""Write and read the state of an accumulator: arrays and plain values, never code."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.streaming.score_buckets import BITS, FINITE, max_rows
from everypair.streaming.stream_rows import Rows

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
    with open(path, "rb") as opened:
        try:
            with np.load(opened, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            plain = json.loads(arrays.pop("state").tobytes())
            if plain.pop("format") != _FORMAT:
                raise ValueError("it was written by another version")
            _check(plain, arrays)
            return plain, arrays
        # A damaged archive raises errors of zipfile, zlib, struct, tokenize, NumPy and others.
        except Exception as error:
            reason = str(error) or type(error).__name__
    raise ValueError(
        f"{path} must be a checkpoint of a PairAccumulator; it is not ({reason}). Load a file that "
        "PairAccumulator.save wrote."
    )


def _check(plain: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Raise ValueError unless these are values that `PairAccumulator.state` can return."""
    kinds: dict[str, type] = {"mode": str}
    if plain["mode"] == "bounded":
        kinds |= {"bits": int, "is_rounded": bool}
    elif plain["mode"] != "exact":
        raise ValueError(f"its mode is {plain['mode']!r}")
    else:
        kinds |= {"weighted": bool, "grouped": bool, "keys": list} if arrays else {}
        kinds |= {"pairs": str, "censoring": str} if "pairs" in plain else {}
    if {name: type(value) for name, value in plain.items()} != kinds:
        raise ValueError("its options are not those of an accumulator")
    others = dict(arrays)
    if "bits" in plain:
        _check_table(plain["bits"], others)
    elif arrays:
        _check_rows(plain, others)
    if others:
        raise ValueError(f"it has unknown arrays: {', '.join(others)}")


def _check_rows(plain: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Check and remove the columns of each table: their names, types, lengths and values."""
    keys = plain["keys"]
    if len(set(keys)) < len(keys) or not {type(key) for key in keys} <= {int, str}:
        raise ValueError("its groups are not different integers or strings")
    if keys and not plain["grouped"]:
        raise ValueError("it has names of groups, but no groups")
    tables = Rows(plain.get("pairs", "binary"), plain.get("censoring", "harrell")).tables_with(
        plain["weighted"], plain["grouped"]
    )
    for i, table in enumerate(tables):
        n = arrays[f"scores_{i}"].size
        for name, column in table.items():
            values = arrays.pop(f"{name}_{i}")
            _require(name, values, (column.dtype, np.float64)[: 1 + (name == "scores")], (n,))
            if not np.isfinite(values).all():
                raise ValueError(f"its {name} are not finite")
            if name == "weights" and not (values >= 0.0).all():
                raise ValueError("a weight is negative")
            if name == "groups" and not ((values >= 0) & (values < len(keys))).all():
                raise ValueError("the number of a group is out of range")


def _check_table(bits: int, arrays: dict[str, NDArray[Any]]) -> None:
    """Check and remove the buckets that are used, and their moments."""
    if bits not in BITS:
        raise ValueError(f"its bits are {bits}")
    used, table, shift = arrays.pop("used"), arrays.pop("table"), 32 - bits
    _require("used buckets", used, (np.int64,), (used.size,))
    _require("moments", table, (np.int64,), (2, used.size, 3))
    first, last = (place >> shift for place in FINITE)
    if not ((used >= first) & (used <= last)).all() or not (np.diff(used) > 0).all():
        raise ValueError("its buckets are out of range or not in order")
    # With k from 0 to `largest`, the sums of 1, k and k^2 over the rows of a bucket.
    count, total, squares = table.transpose(2, 0, 1)
    largest = (1 << shift) - 1
    if not (
        ((count >= 0) & (count <= max_rows(bits))).all()
        and ((total >= 0) & (total <= count * largest)).all()
        and ((squares >= total) & (squares <= total * largest)).all()
    ):
        raise ValueError("the moments of a bucket are impossible")


def _require(
    name: str, array: NDArray[Any], dtypes: tuple[Any, ...], shape: tuple[int, ...]
) -> None:
    if array.dtype not in dtypes or array.shape != shape:
        raise ValueError(f"its {name} have type {array.dtype} and shape {array.shape}")
