"""Print the comparison of models on a table: the winner, and one row for each contender."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def show(console: Console, summary: dict[str, Any]) -> None:
    """Print a table of the contenders, the winner first, and what was found.

    If the winner is a blend, the last column has the weights of the others in it.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("model")
    blended = any(one.get("weight") is not None for one in summary["contenders"])
    names = ("validation", "test", "difference", "95 % interval")
    for name in (*names, "weight") if blended else names:
        table.add_column(name, justify="right", no_wrap=True)
    for i, one in enumerate(summary["contenders"]):
        aucs = (f"{one[name]:.4f}" for name in ("validation_auc", "test_auc"))
        gap = f"{one['difference']:+.4f}" if i else ""
        weight = [""] if one.get("weight") is None else [f"{one['weight']:.0%}"]
        cells = (one["name"], *aucs, gap, _interval(one), *(weight if blended else ()))
        table.add_row(*cells, style="" if i else "bold")
    weights = "; weight: its share in the blend" if blended else ""
    title = f"AUC of each model; difference: its test AUC minus the winner's{weights}"
    console.print(title, style="bold")
    console.print(table)
    if summary["importance"]:
        drops = [f"{row['column']} {row['drop']:.3f}" for row in summary["importance"][:5]]
        text = f"Drop of the AUC if a column is permuted: {', '.join(drops)}"
        console.print(text, soft_wrap=True)
    if summary.get("intervals"):
        text = f"The 95 % intervals cover {summary['intervals']}."
        console.print(text, soft_wrap=True)
    for reason in summary["skipped"]:
        console.print(f"Skipped: {reason}", soft_wrap=True)
    console.print(found(summary), soft_wrap=True)


def found(summary: dict[str, Any]) -> str:
    """Return what was found, in two sentences.

    >>> winner = {"name": "linear pairs", "test_auc": 0.9, "interval": [0.85, 0.95]}
    >>> behind = {"name": "LightGBM pairs", "interval": [-0.1, -0.01]}
    >>> found({"winner": winner, "contenders": [winner, behind]})
    'The winner is linear pairs: test AUC 0.900 (95 % interval 0.850 to 0.950). It is ahead of
    LightGBM pairs.'
    """
    winner, others = summary["winner"], summary["contenders"][1:]
    article = "the " if winner["name"].startswith("blend of") else ""
    text = f"The winner is {article}{winner['name']}: test AUC {winner['test_auc']:.3f}"
    if winner["interval"]:
        text += " (95 % interval {:.3f} to {:.3f})".format(*winner["interval"])
    elif summary.get("intervals"):
        text += " (no interval: the test part has fewer than two rows of a class)"
    behind = [one["name"] for one in others if one["interval"] and one["interval"][1] < 0]
    if not others:
        return f"{text}."
    if not any(one["interval"] for one in others):
        return f"{text}. Differences have no intervals here; --seeds 5 gives them."
    if not behind:
        return f"{text}. The test part shows no clear difference from the others."
    rest = "; the others are within chance" if len(behind) < len(others) else ""
    return f"{text}. It is ahead of {', '.join(behind)}{rest}."


def _interval(one: dict[str, Any]) -> str:
    return "{:+.4f} to {:+.4f}".format(*one["interval"]) if one["interval"] else ""
