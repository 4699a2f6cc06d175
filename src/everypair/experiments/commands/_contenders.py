"""Print the comparison of models on a table: the winner, and one row for each contender."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def read(folder: Path) -> dict[str, Any]:
    """Return the summary of an experiment on a table; empty for other experiments."""
    try:
        found: dict[str, Any] = json.loads((folder / "winner" / "summary.json").read_text())
    except OSError:
        return {}
    return found


def show(console: Console, summary: dict[str, Any]) -> None:
    """Print the winner and a table of the contenders, the greatest validation AUC first."""
    from rich import box
    from rich.table import Table

    winner = summary["winner"]
    interval = ""
    if winner["interval"]:
        interval = " (95 % interval {:.3f} to {:.3f})".format(*winner["interval"])
    console.print(f"[bold]The winner: {winner['name']}[/bold]")
    console.print(f"Test AUC {winner['test_auc']:.3f}{interval}", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("model")
    for name in ("validation AUC", "test AUC", "test AUC minus winner's", "95 % interval"):
        table.add_column(name, justify="right", no_wrap=True)
    for i, one in enumerate(summary["contenders"]):
        gap, between = "", ""
        if i:
            gap = f"{one['difference']:+.4f}"
            if one["interval"]:
                between = "{:+.4f} to {:+.4f}".format(*one["interval"])
        aucs = (f"{one[name]:.4f}" for name in ("validation_auc", "test_auc"))
        table.add_row(one["name"], *aucs, gap, between, style="" if i else "bold")
    console.print(table)
    if summary["skipped"]:
        console.print(f"Skipped: {', '.join(summary['skipped'])}", highlight=False)
    if summary["importance"]:
        drops = [f"{row['column']} {row['drop']:.3f}" for row in summary["importance"][:5]]
        console.print(
            f"Columns that matter most (drop of the AUC when permuted): {', '.join(drops)}",
            highlight=False,
        )
