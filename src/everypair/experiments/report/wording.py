"""Format names and numbers in the same way in every output of the report.

>>> spread(0.98765, 0.00432), spread(0.98765, float("nan"))
('0.988 ± 0.004', '0.988')
>>> duration(75), duration(7322)
('1 min 15 s', '2 h 2 min')
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from everypair.experiments.display_names import display_name
from everypair.experiments.plan import FULL_BATCH, Settings
from everypair.experiments.report.selection import Comparison, Contender, Difference, Standing

NOTHING = "–"
PARTS = {"subtrain": "training", "validation": "validation"}
"""Plain names of the parts of a split."""


def contender(who: Contender) -> str:
    """Return the names of loss and optimiser."""
    return f"{display_name(who.loss)} + {display_name(who.optimiser)}"


def data(key: str, settings: Settings) -> str:
    """Return the name of the data set; for a user's table, the name of its file."""
    return PurePath(settings.table.path).name if settings.table else display_name(key)


def share(imratio: float) -> str:
    """Return the share of positives in per cent; an imratio of 0 leaves the data unchanged.

    >>> share(0.001), share(0)
    ('0.1 %', 'unchanged')
    """
    return f"{100 * imratio:g} %" if imratio else "unchanged"


def comparison(what: Comparison, settings: Settings) -> str:
    """Return data and share of positives, if that was changed."""
    name = data(what.data, settings)
    return f"{name}, {share(what.imratio)} positives" if what.imratio else name


def number(value: float, pattern: str) -> str:
    """Format a value; NaN becomes a dash."""
    return NOTHING if math.isnan(value) else format(value, pattern)


def auc(value: float) -> str:
    """Return an AUC to three digits."""
    return number(value, ".3f")


def signed(value: float) -> str:
    """Return a difference with its sign, with a typographic minus.

    >>> signed(-0.00123)
    '−0.0012'
    """
    return number(value, "+.4f").replace("-", "−")


def spread(mean: float, sd: float) -> str:
    """Return mean and standard deviation; one seed has no spread."""
    return auc(mean) if math.isnan(sd) else f"{auc(mean)} ± {auc(sd)}"


def batch(size: float) -> str:
    """Return a batch size."""
    return "full" if size == FULL_BATCH else number(size, "g")


def rate(value: float) -> str:
    """Return a learning rate to two digits.

    >>> rate(10**-3.5), rate(100.0)
    ('0.00032', '100')
    """
    return NOTHING if math.isnan(value) else f"{float(f'{value:.2g}'):g}"


def duration(seconds: float) -> str:
    """Return a time in the two units that matter."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def amount(n: int, thing: str) -> str:
    """Return a number with its noun in the singular or plural.

    >>> amount(1, "seed"), amount(1200, "trial")
    ('1 seed', '1,200 trials')
    """
    return f"{n:,} {thing}" + "s" * (n != 1)


def interval(gap: Difference) -> str:
    """Return the interval of a difference, or why there is none."""
    if gap.interval is None:
        return "needs two seeds" if gap.n else "no seed in common"
    low, high = gap.interval
    return f"{signed(low)} to {signed(high)}"


def ahead(gap: Difference, called: Callable[[Contender], str]) -> str:
    """Return the name of the contender that is ahead, ``tie`` or ``cannot say``."""
    names = {"first": called(gap.first), "second": called(gap.second), "unknown": "cannot say"}
    return names.get(gap.verdict, gap.verdict)


def listing(items: Sequence[str]) -> str:
    """Join items with commas and "and".

    >>> listing(["a", "b", "c"])
    'a, b and c'
    """
    *head, last = items
    return f"{', '.join(head)} and {last}" if head else last


def standing(place: Standing, called: Callable[[Contender], str]) -> str:
    """Return one or two sentences about who is ahead in a comparison."""
    leader = called(place.leader)
    tied, behind, unknown = (
        [called(who) for who in place.where(verdict)] for verdict in ("tie", "first", "unknown")
    )
    sentences = [f"{listing([leader, *tied])} tie."] if tied else []
    if behind:
        sentences.append(f"{leader} is ahead of {listing(behind)}.")
    if unknown:
        sentences.append(
            f"{leader} has the greatest mean, but fewer than two seeds "
            f"in common with {listing(unknown)}: cannot say."
        )
    sentences = sentences or [f"{leader} had no rival."]
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)


def winner(summary: Mapping[str, Any]) -> str:
    """Return a text: which model won on a table, its AUC, and whether its lead is certain."""
    won, rivals = summary["winner"], summary["contenders"]
    name = f"the {won['name']}" if won["name"].startswith("blend of") else won["name"]
    name = name[0].upper() + name[1:]
    text = f"{name} won, with a test AUC of {auc(won['test_auc'])}"
    if won.get("interval"):
        low, high = won["interval"]
        text += f" (95 % interval {auc(low)} to {auc(high)})"
    text += "."
    better = [
        one["name"]
        for one in rivals
        if one["name"] != won["name"] and one.get("interval") and one["interval"][1] < 0
    ]
    others = [one["name"] for one in rivals if one["name"] != won["name"]]
    if better and len(better) == len(others):
        return f"{text} It is ahead of all others on the test rows."
    if better:
        return f"{text} It is ahead of {listing(better)}; the test rows do not separate the rest."
    return (
        f"{text} The test rows do not show that it is better than the others." if others else text
    )


def parameters(found: object) -> list[str]:
    """Return the names and values of the parameters of each member of a model.

    >>> parameters([{"family": "lightgbm", "loss": "pairs", "leaves": 7, "rate": 0.1}])
    ['LightGBM, pairs: leaves 7, rate 0.1']
    """
    members = [found] if isinstance(found, dict) else found if isinstance(found, list) else []
    texts = []
    for member in members:
        names = [display_name(str(member[k])) for k in ("family", "loss") if k in member]
        rest = [
            f"{display_name(k)} {v:.4g}" if isinstance(v, float) else f"{display_name(k)} {v}"
            for k, v in member.items()
            if k not in ("family", "loss")
        ]
        texts.append(": ".join(filter(None, (", ".join(names), ", ".join(rest)))))
    return texts
