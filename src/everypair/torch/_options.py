"""The options of a loss in one object, which is checked when it is made.

`PairLoss` makes it once. Registered operators take the terms of a surrogate as text, because a
compiler puts only tensors and constants into a graph.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from everypair.inputs import pair_options
from everypair.surrogates import (
    ExponentialTerm,
    Fit,
    Fits,
    KnotTerm,
    PairTerm,
    ShiftedTerm,
    SmoothTerm,
    Surrogate,
)
from everypair.torch._compat import constant_in_graphs


class LossOptions(NamedTuple):
    """How a batch is evaluated, whatever its tensors are.

    Attributes
    ----------
    terms : tuple of PairTerm
        Those of the surrogate at its margin; () while a compiler traces, which reads `text` only.
    mean : bool
        Whether to divide by the total pair weight.
    check : bool or None
        Whether to raise if a value is not allowed; None stands for scores on the CPU only.
    pairs : str
        What labels are: "binary", "ordered", or times that are negative where censored, "survival"
        or "uno".
    by_task : bool
        Whether each task keeps its own loss.
    rates : (max_fpr, min_tpr) or None
        The rates that a partial AUC is restricted to.
    margin : float or None
        The margin as it was given, for messages.
    text : str
        The terms as text, or "" where `encoded` has to write it.
    missing : bool
        Whether to leave out the rows of a batch whose labels are NaN; set for each batch.
    """

    terms: tuple[PairTerm, ...]
    mean: bool = True
    check: bool | None = None
    pairs: str = "binary"
    by_task: bool = False
    rates: tuple[float, float] | None = None
    margin: float | None = None
    text: str = ""
    missing: bool = False

    def checks(self, on_cpu: bool) -> bool:
        """Return whether to raise if a value is not allowed."""
        return on_cpu if self.check is None else self.check

    def flat(self, on_cpu: bool) -> tuple[str, bool, bool, bool, str]:
        """Return the options as registered operators take them."""
        text = self.text or encoded(self.terms)
        return text, self.mean, self.checks(on_cpu), self.missing, self.pairs


def from_flat(text: str, mean: bool, check: bool, missing: bool, pairs: str) -> LossOptions:
    """Undo `LossOptions.flat`."""
    return LossOptions(decoded(text), mean, check, pairs, text=text, missing=missing)


def loss_options(
    surrogate: str | Surrogate,
    margin: float | None,
    reduction: str,
    check: bool | None,
    pairs: str,
    censoring: str,
    max_fpr: float | None,
    min_tpr: float | None,
) -> LossOptions:
    """Check the options of `everypair.torch.pair_loss`."""
    terms: tuple[PairTerm, ...] = ()
    text = ""
    if torch.compiler.is_compiling():
        # After a change of the margin the compiler makes it a variable; its digits are constant.
        digits = None if margin is None else float(margin).hex()
        text = _text_of(surrogate, digits)
    else:
        terms = pair_options.loss_options(surrogate, margin, "mean")[0]
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(
            "reduction must be 'mean' (divide by the total pair weight), 'sum' or 'none' (one "
            f"mean for each task); got {reduction!r}. There is no reduction per row: a loss "
            "belongs to pairs."
        )
    if not (pairs == "binary" and censoring == "harrell"):
        pair_options.check_pairs(pairs, censoring)
    rates = pair_options.check_rates(max_fpr, min_tpr, pairs)
    kind = "uno" if censoring == "uno" else pairs
    mean, by_task = reduction != "sum", reduction == "none"
    return LossOptions(terms, mean, check, kind, by_task, rates, margin, text)


@constant_in_graphs
def _text_of(surrogate: str | Surrogate, margin: str | None) -> str:
    """Return the terms as text while a compiler traces, which cannot trace their expansion."""
    return encoded(
        pair_options.terms_at(surrogate, None if margin is None else float.fromhex(margin))
    )


@lru_cache(maxsize=64)
def encoded(terms: tuple[PairTerm, ...]) -> str:
    """Return terms as text: a list of the numbers of each, and a dictionary for a smooth one."""
    return json.dumps(terms, default=vars)


@lru_cache(maxsize=64)
def decoded(text: str) -> tuple[PairTerm, ...]:
    """Undo `encoded`."""
    return tuple(
        ShiftedTerm(*term) if isinstance(term[1], SmoothTerm | ExponentialTerm) else KnotTerm(*term)
        for term in json.loads(text, object_hook=_term)
    )


def _term(fields: dict[str, Any]) -> SmoothTerm | ExponentialTerm:
    if "low" not in fields:
        return ExponentialTerm(**fields)
    for name in ("low", "high"):
        of_orders = _tuples(fields[name])
        fields[name] = Fits(*(Fit(*of_order) for of_order in of_orders))
    return SmoothTerm(**fields)


def _tuples(data: Any) -> Any:
    return tuple(map(_tuples, data)) if isinstance(data, list) else data
