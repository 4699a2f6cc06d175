"""``everypair timing``: the paper's figure 2, with the backends that run on this machine."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from everypair.experiments import _terminal
from everypair.experiments.commands._parameters import JsonFlag, option, words
from everypair.experiments.errors import UserError

if TYPE_CHECKING:
    from everypair.experiments.figures.timing import Result


def command(
    max_n: Annotated[float, option("Largest number of rows, such as 1e6.")] = 1e7,
    backends: Annotated[
        str | None, option("What to time, such as native,numpy,torch,logistic.", default="all")
    ] = None,
    surrogate: Annotated[str, option("Surrogates of the pair loss.")] = "square,squared_hinge",
    threads: Annotated[int, option("CPU threads of every backend.", min=1, max=1024)] = 1,
    seconds: Annotated[float, option("Repeat every call for so many seconds.", min=0.0)] = 0.3,
    limit: Annotated[float, option("Skip sizes where a call takes more seconds.", min=0.0)] = 3.0,
    out: Annotated[
        Path, option("Writes OUT.csv, OUT.png and OUT.svg, or only the file OUT; none with --json.")
    ] = Path("timing"),
    json_: JsonFlag = False,
) -> None:
    """Time loss and gradient against the number of rows (the paper's figure 2)."""
    import everypair as ep
    from everypair.experiments.figures import output, timing, timing_plot

    ns = timing.sizes(int(max_n)) if math.isfinite(max_n) else []
    if not ns:
        raise UserError(f"--max-n must be a number of at least 10; got {max_n:g}.")
    names = _chosen("backends", backends, tuple(timing.CONTENDERS))
    surrogates = _chosen("surrogate", surrogate, ep.surrogates.names())
    files = {} if json_ else output.targets(out, "timing", ("csv", "png", "svg"))
    options = {"threads": threads, "seconds": seconds, "limit": limit}
    results = [_run_with_progress(names, ns, surrogate=one, **options) for one in surrogates]
    for result in results:
        if not result.timings:
            reasons = "; ".join(f"{name} {why}" for name, why in result.left_out.items())
            raise UserError(f"--backends must name at least one that runs here; {reasons}")
    if json_:
        _terminal.echo_json([{**asdict(result), "slopes": result.slopes} for result in results])
        return
    for result in results:
        _show(result, ns)
    _terminal.echo(output.save_all(files, timing_plot.draw(results), timing_plot.rows(results)))


def _chosen(name: str, text: str | None, known: Collection[str]) -> list[str]:
    chosen = list(known) if text is None else words(text)
    unknown = [word for word in chosen if word not in known]
    if unknown or not chosen:
        raise UserError(
            f"--{name} must be some of {','.join(known)}; got {', '.join(unknown) or 'none'}."
        )
    return chosen


def _run_with_progress(names: list[str], ns: list[int], **options: float | str) -> Result:
    from rich.progress import Progress

    from everypair.experiments.figures import timing

    console = _terminal.console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(names) * len(ns))

        def on_step(name: str, n: int) -> None:
            done, label = names.index(name) * len(ns) + ns.index(n), timing.CONTENDERS[name].label
            progress.update(task, completed=done, description=f"{label}, n = {n:,}")

        return timing.run(names, ns, on_step=on_step, **options)  # type: ignore[arg-type]


def _show(result: Result, ns: list[int]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from everypair.experiments.figures.timing_plot import duration

    threads = f"{result.threads} thread{'' if result.threads == 1 else 's'}"
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("n", no_wrap=True)
    for n in ns:
        table.add_column(f"1e{len(str(n)) - 1}", justify="right", no_wrap=True)
    table.add_column("slope", justify="right")
    for name, exponent in result.slopes.items():
        taken = {t.n: duration(t.median) for t in result.of(name)}
        cells = [taken.get(n, "") for n in ns]
        table.add_row(name, *cells, "" if exponent is None else f"{exponent:.2f}")
    console = _terminal.console()
    console.print(f"Time of loss and gradient: {result.surrogate}, {threads}")
    console.print(table)
    for name, why in result.left_out.items():
        console.print(f"{name}: {why}", style="dim")
