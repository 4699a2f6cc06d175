"""Surrogates of the pairwise zero-one loss, as data."""

from __future__ import annotations

from everypair.surrogates._surrogate import (
    HUBER_HINGE,
    LINEAR_HINGE,
    SQUARE,
    SQUARED_HINGE,
    Floats,
    Formula,
    KnotTerm,
    Surrogate,
    Term,
    get,
    names,
    pieces,
)

__all__ = [
    "HUBER_HINGE",
    "LINEAR_HINGE",
    "SQUARE",
    "SQUARED_HINGE",
    "Floats",
    "Formula",
    "KnotTerm",
    "Surrogate",
    "Term",
    "get",
    "names",
    "pieces",
]
