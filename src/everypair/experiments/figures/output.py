"""Write the figures and rows of a command to files, atomically.

>>> [str(path) for path in targets(Path("mine"), "roc", ("csv", "png")).values()]
['mine.csv', 'mine.png']
>>> list(targets(Path("mine.png"), "roc", ("csv", "png")))
['png']
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everypair.experiments._atomic import replacing
from everypair.experiments.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def targets(out: Path, name: str, kinds: Sequence[str]) -> dict[str, Path]:
    """Return the files to write, by kind: the file that `out` names, or one of each kind.

    If `out` is a folder, the files are in it and are called `name`.
    """
    out = out / name if out.is_dir() else out
    kind = out.suffix[1:].lower()
    if not kind:
        return {kind: out.with_name(f"{out.name}.{kind}") for kind in kinds}
    if kind in kinds:
        return {kind: out}
    raise UserError(
        f"--out must end in {', '.join(f'.{k}' for k in kinds)}, or have no ending to get "
        f"all of them; got {str(out)!r}."
    )


@contextmanager
def styled() -> Iterator[None]:
    """Use the figure style of the project inside the block."""
    import matplotlib as mpl

    style: Any = {
        "font.size": 10,
        "svg.hashsalt": "everypair",  # so that the same figure gives the same bytes
        "axes.edgecolor": "#999999",
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": 11,
        "grid.color": "#e6e6e6",
        "legend.frameon": False,
    }
    with mpl.rc_context(style):
        yield


def save_all(files: Mapping[str, Path], figure: Figure, rows: bytes = b"") -> str:
    """Write the rows to the CSV file and the figure to the others; return which were written."""
    for kind, path in files.items():
        save(path, rows if kind == "csv" else figure)
    return "Written: " + ", ".join(map(str, files.values()))


def save(path: Path, content: Figure | bytes) -> None:
    """Write a figure (PNG or SVG, by the ending of the name) or bytes."""
    try:
        with replacing(path) as unfinished:
            if isinstance(content, bytes):
                unfinished.write_bytes(content)
                return
            date: Any = {"Date": None} if path.suffix.lower() == ".svg" else None
            with styled():
                content.savefig(unfinished, dpi=160, metadata=date)
    except OSError as error:
        raise UserError(
            f"{str(path)!r} could not be written: {error.strerror or error}. "
            "Choose another file with --out."
        ) from error
