"""Write Markdown tables of the rows into the README and the documentation.

The text between ``<!-- rows: NAME -->`` and ``<!-- end -->`` of a page is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import pages
from benchmarks.bars import ACCURACY, where
from benchmarks.contenders import NATIVE
from benchmarks.plot import STYLES
from benchmarks.rows import ROOT, KernelRow, Row

PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")


def markdown(head: Iterable[object], body: Iterable[Iterable[object]]) -> str:
    first, *others = head
    lines = [[first, *others], ["---", *["--:" for _ in others]], *map(list, body)]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def power(n: int) -> str:
    exponent = len(str(n)) - 1
    return f"10<sup>{exponent}</sup>" if n == 10**exponent else f"{n:,}"


def share(positives: float) -> str:
    return f"{100 * positives:.3g} %"


def duration(seconds: float) -> str:
    for unit, scale in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        rounded = f"{seconds * scale:.3g}"
        if float(rounded) >= 1 or unit == "µs":
            return f"{rounded} {unit}"
    raise AssertionError


def across_n(rows: list[Row], cell: Callable[[Row], str]) -> tuple[list[int], Callable]:
    """Return the sizes, and a function that returns the cells of a line, one for each size."""
    sizes = sorted({r.n for r in rows})

    def line(some: list[Row]) -> list[str]:
        by_n = {r.n: cell(r) for r in some}
        return [by_n.get(n, "") for n in sizes]

    return sizes, line


def ratio(row: Row) -> str:
    return f"{row.bce_ratio:.2f}"


def speed(rows: list[Row]) -> str:
    """Time relative to BCE, by threads and share of positives."""
    ours = where(rows, suite="loss_and_grad")
    sizes, line = across_n(ours, ratio)
    kinds = sorted({(r.threads, -r.positives) for r in ours})
    return markdown(
        ["threads, positives", *map(power, sizes)],
        ([f"{t}, {share(-p)}", *line(where(ours, threads=t, positives=-p))] for t, p in kinds),
    )


def times(rows: list[Row]) -> str:
    """Median times on one thread, with 50 % positives."""
    timed = [r for r in rows if r.suite == "loss_and_grad" and (r.threads, r.positives) == (1, 0.5)]
    sizes, line = across_n(timed, lambda r: duration(r.median))
    return markdown(
        ["", *map(power, sizes)],
        (
            [label, *line([r for r in timed if r.backend == backend])]
            for backend, (label, *_) in reversed(STYLES.items())
        ),
    )


def hard(rows: list[Row]) -> str:
    """Time relative to BCE on one thread, by distribution of the scores."""
    ours = where(rows, suite="hard_inputs", threads=1)
    sizes, line = across_n(ours, ratio)
    shapes = dict.fromkeys(r.input for r in ours)
    return markdown(
        ["scores", *map(power, sizes)],
        ([shape, *line(where(ours, input=shape))] for shape in shapes),
    )


def kernel(rows: list[KernelRow]) -> str:
    """Make a table for each instruction set: time relative to BCE, by question and size.

    The squared hinge has a column for each share of positives; the other columns are for 10 %.
    """
    if not rows:
        return "*There are no rows yet.*\n"
    tables = []
    for isa in dict.fromkeys(r.isa for r in rows):
        found = {(r.question, r.positives, r.n): r for r in rows if r.isa == isa}
        sizes = sorted({n for _, _, n in found})
        columns = list(dict.fromkeys((question, share) for question, share, _ in found))
        columns = [c for c in columns if c[0] == "squared_hinge"] + [
            c for c in columns if c[0] != "squared_hinge" and c[1] == 0.1
        ]
        heads = [
            f"`{question}` {share(positives)}" if question == "squared_hinge" else f"`{question}`"
            for question, positives in columns
        ]
        cells = (
            [f"{n:,}", *(f"{r.ratio:.2f}" if (r := found.get((*c, n))) else "" for c in columns)]
            for n in sizes
        )
        one = next(iter(found.values()))
        tables.append(
            f"{isa}, torch at {one.torch_capability} (*{one.machine}, Python {one.python}, NumPy "
            f"{one.numpy}, torch {one.torch}, everypair {one.everypair} at {one.commit}, "
            f"{one.date}*):\n\n{markdown(['n', *heads], cells)}"
        )
    picture = "![Time relative to BCE against the size of the batch](assets/kernel.svg)\n"
    return "\n".join([*tables, picture])


def accuracy(rows: list[Row]) -> str:
    """Largest relative errors, by contender, input type and kind of scores."""
    kinds = {
        "offset 1e3 and 1e6": lambda r: r.input.startswith("offset"),
        "all other shapes": lambda r: not r.input.startswith("offset"),
    }
    body = []
    for backend in (NATIVE.backend, "everypair NumPy", "torch paper"):
        for dtype in ACCURACY:
            for kind, belongs in kinds.items():
                found = where(rows, suite="accuracy", backend=backend, dtype=dtype)
                worst = {
                    quantity: max(
                        (r.median for r in found if belongs(r) and r.quantity == quantity),
                        default=float("nan"),
                    )
                    for quantity in ("loss error", "gradient error")
                }
                if found:
                    label = STYLES[backend][0]
                    body.append([label, dtype, kind, *(f"{v:.1e}" for v in worst.values())])
    return markdown(["", "input", "scores", "loss", "gradient"], body)


def footprint(rows: list[Row]) -> str:
    memory = [r.median for r in rows if r.suite == "memory" and r.backend == NATIVE.backend]
    found = {r.quantity: r.median for r in rows if r.suite in ("import", "wheel")}
    body = []
    if memory:
        body.append(["working memory, at most", f"{max(memory):.1f} bytes a row"])
    if "wheel bytes" in found:
        body.append(["wheel", f"{found['wheel bytes'] / 1e3:.0f} kB"])
    if "import seconds" in found:
        body.append(["`import everypair`, numpy included", f"{found['import seconds']:.2f} s"])
    return markdown(["what", "how much"], body)


def provenance(rows: list[Row]) -> str:
    """One line with the machine and the versions of the rows."""
    r = next((r for r in rows if r.suite == "loss_and_grad"), None)
    if r is None:
        return ""
    return (
        f"*Measured by `make bench` on {r.machine} ({r.cores} cores, {r.isa}), Python {r.python}, "
        f"NumPy {r.numpy}, torch {r.torch}, LibAUC {r.libauc or 'absent'}, "
        f"everypair {r.everypair} at {r.commit}, {r.date}.*\n"
    )


TABLES: dict[str, Callable[[list[Row]], str]] = {
    table.__name__: table for table in (speed, times, hard, accuracy, footprint, provenance)
}


def fill(rows: list[Row], of_kernel: list[KernelRow]) -> list[Path]:
    """Replace the tables between the markers of each page."""
    made = {f"rows: {name}": table(rows) for name, table in TABLES.items()}
    pages.fill(PAGES, {**made, "rows: kernel": kernel(of_kernel)})
    return list(PAGES)
