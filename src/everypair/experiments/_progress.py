"""A progress bar on standard error, shown on terminals only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(
    text: str, total: float | None, *, done: float = 0, in_bytes: bool = False
) -> Iterator[Callable[[float], None]]:
    """Show a bar while the block runs; yield a function that advances it by an amount.

    >>> with progress("Counting", 2) as advance:
    ...     advance(1)
    """
    from rich import progress as rich_progress

    from everypair.experiments import _terminal

    console = _terminal.console(stderr=True)
    amounts: list[rich_progress.ProgressColumn] = [rich_progress.MofNCompleteColumn()]
    if in_bytes:
        amounts = [rich_progress.DownloadColumn(), rich_progress.TransferSpeedColumn()]
    with rich_progress.Progress(
        rich_progress.TextColumn("{task.description}", markup=False),
        rich_progress.BarColumn(),
        *amounts,
        rich_progress.TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(_terminal.printable(text), total=total, completed=int(done))
        yield lambda amount: bar.advance(task, amount)
