"""Errors that several checks of input raise."""

from __future__ import annotations

from typing import NoReturn


def raise_no_rows() -> NoReturn:
    """Raise the error about empty input."""
    raise ValueError("scores must hold at least one row; got none. Check the filter before it.")


def raise_not_floats(dtype: object, remedy: str) -> NoReturn:
    """Raise the error about scores that cannot have a gradient."""
    raise ValueError(
        f"scores must be floats, because they receive a gradient; got {dtype}. Pass {remedy}."
    )


def raise_not_finite(name: str, value: object, i: int) -> NoReturn:
    """Raise the error about a number that is infinite or NaN."""
    raise ValueError(
        f"{name} must be finite; got {value!r} (first at index {i}). "
        "A model that returns it has diverged, or a row was empty."
    )


def raise_not_real(name: str, dtype: object) -> NoReturn:
    """Raise the error about complex numbers."""
    raise ValueError(f"{name} must be real numbers; got {dtype}. Pass {name}.real.")


def raise_group_dtype(dtype: object, library: str) -> NoReturn:
    """Raise the error about groups that are not integers; `library` has a function `unique`."""
    raise ValueError(
        f"groups must be whole numbers, one for every row; got {dtype}. "
        f"Number them first: {library}.unique(groups, return_inverse=True)[1]."
    )


def raise_length(name: str, length: int, n: int) -> NoReturn:
    """Raise the error about an argument with another number of rows than the scores."""
    raise ValueError(
        f"{name} must have one entry per score; got {length} for {n} scores. "
        "Check that both come from the same rows."
    )
