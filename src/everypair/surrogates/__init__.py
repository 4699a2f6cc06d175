"""Surrogates of the pairwise zero-one loss, as data.

A surrogate is a sum of terms in the shortfall of a pair, ``t = margin - (s_pos - s_neg)``:
truncated polynomials, polynomials in ``exp(-rate |t|)``, and exponentials. Every surrogate of this
form works in every function of the library. Backends read the terms, never the name.

>>> SQUARED_HINGE.value([-1.0, 0.5, 2.0])
array([0.  , 0.25, 4.  ])
>>> steep = Surrogate("steep", (Term(0.0, 3.0, 0.0, knot=0.0),))
>>> steep.slope([-1.0, 0.5])
array([0., 3.])
>>> logistic(temperature=0.5).value([0.0]).round(4)  # log(2)
array([0.6931])
"""

from __future__ import annotations

from everypair.surrogates._builtin import (
    HUBER_HINGE,
    LINEAR_HINGE,
    SQUARE,
    SQUARED_HINGE,
    exponential,
    get,
    logistic,
    names,
    sigmoid,
    squared_softplus,
)
from everypair.surrogates._fit import fit
from everypair.surrogates._surrogate import Formula as Formula
from everypair.surrogates._surrogate import Surrogate
from everypair.surrogates._surrogate import pieces as pieces
from everypair.surrogates._tables import Exponential as Exponential
from everypair.surrogates._tables import Table as Table
from everypair.surrogates._tables import tables as tables
from everypair.surrogates._terms import (
    ExponentialTerm,
    Fit,
    Fits,
    KnotTerm,
    ShiftedTerm,
    SmoothTerm,
    Term,
    are_polynomials,
)
from everypair.surrogates._terms import Floats as Floats
from everypair.surrogates._terms import PairTerm as PairTerm

__all__ = [
    "HUBER_HINGE",
    "LINEAR_HINGE",
    "SQUARE",
    "SQUARED_HINGE",
    "ExponentialTerm",
    "Fit",
    "Fits",
    "KnotTerm",
    "ShiftedTerm",
    "SmoothTerm",
    "Surrogate",
    "Term",
    "are_polynomials",
    "exponential",
    "fit",
    "get",
    "logistic",
    "names",
    "sigmoid",
    "squared_softplus",
]
