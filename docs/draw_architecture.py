"""Draw the folders of the package and the way of a batch, from the code.

    python docs/draw_architecture.py

Writes `assets/folders.svg`, from import statements, and `assets/batch.svg`, from traces of calls.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from graphlib import TopologicalSorter
from html import escape
from pathlib import Path

import numpy as np

import everypair as ep

SOURCE = Path(ep.__file__).parent
ASSETS = Path(__file__).parent / "assets"
# Parts of these folders are drawn with them.
WHOLE = ("experiments", "torch/triton", "torch/training")
WIDTH, ROW = 980, 17

Line = tuple[str, str]  # a class of the style below, and text


def folder_of(path: Path) -> str:
    """Return the folder that a file is drawn in; a file of the root is drawn alone."""
    folder = path.parent.relative_to(SOURCE).as_posix()
    folder = next((whole for whole in WHOLE if folder.startswith(whole)), folder)
    return path.stem if folder == "." else folder


def imports() -> dict[str, set[str]]:
    """Return the folders that each folder imports when it is loaded."""
    graph: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if path.parent == SOURCE and path.stem.startswith("_"):
            continue  # the version, and the public names of all folders
        folder = folder_of(path)
        for node in ast.parse(path.read_text()).body:
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
            for name in names:
                if name.startswith("everypair.") and (target := file_of(name)):
                    graph.setdefault(folder, set()).add(folder_of(target))
        graph.setdefault(folder, set())
    for folder, targets in graph.items():
        # A package gathers the public names of its parts; the parts are below it in the picture.
        targets -= {folder} | {t for t in targets if folder in t.split("/")[:-1]}
    return graph


def file_of(name: str) -> Path | None:
    """Return the file of a dotted name, or None if it names no module."""
    path = SOURCE.joinpath(*name.split(".")[1:])
    if path.with_suffix(".py").is_file():
        return path.with_suffix(".py")
    return path / "__init__.py" if (path / "__init__.py").is_file() else None


def purpose(folder: str) -> str:
    """Return the first sentence of the docstring of a folder."""
    path = file_of("everypair." + folder.replace("/", "."))
    text = ast.get_docstring(ast.parse(path.read_text())) if path else ""
    return " ".join((text or "").split("\n\n")[0].replace("`", "").split()).split(". ")[0]


def calls_of(call: Callable[[], object]) -> list[tuple[str, list[str]]]:
    """Return the files that a call passes through, in order, with their functions."""
    way: list[tuple[str, list[str]]] = []

    def note(frame: object, event: str, _: object) -> None:
        code = frame.f_code  # type: ignore[attr-defined]
        if event != "call" or not code.co_filename.startswith(str(SOURCE)):
            return
        place, name = Path(code.co_filename).relative_to(SOURCE).as_posix(), code.co_name
        if name[0] != "<" and not name.startswith("__"):
            if not way or way[-1][0] != place:
                way.append((place, []))
            if name not in way[-1][1]:
                way[-1][1].append(name)

    for _ in range(3):
        call()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return way


def box(x: float, y: float, width: float, lines: list[Line]) -> str:
    """Return a rectangle with lines of text."""
    height = ROW * len(lines) + 10
    text = "".join(
        f'<text class="{kind}" x="{x + 8}" y="{y + ROW * (i + 1)}">{escape(line)}</text>'
        for i, (kind, line) in enumerate(lines)
    )
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>{text}'


def wrapped(kind: str, text: str, columns: int) -> list[Line]:
    """Break a text into lines of at most this many characters."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= columns and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return [(kind, line) for line in lines]


def page(parts: list[str], height: float) -> str:
    """Return an SVG file."""
    style = (
        "text{font:12px sans-serif;fill:#222}.name{font-weight:bold}.note{fill:#666}"
        "rect{fill:#f4f6fa;stroke:#8899bb}.back{fill:#fff;stroke:none}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}">'
        f"<style>{style}</style>"
        f'<rect class="back" width="{WIDTH}" height="{height:.0f}"/>{"".join(parts)}</svg>\n'
    )


def layers(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the folders by layer, top first; a folder is above all that it imports."""
    level: dict[str, int] = {}
    for folder in TopologicalSorter(graph).static_order():
        level[folder] = 1 + max((level[target] for target in graph[folder]), default=0)
    numbers = range(max(level.values()), 0, -1)
    return [sorted(f for f in level if level[f] == number) for number in numbers]


def draw_folders() -> str:
    """Return the picture of the folders, from the highest layer down to the lowest."""
    graph, parts, y = imports(), [], 10.0
    for folders in layers(graph):
        width = (WIDTH - 20) / len(folders) - 6
        columns = int(width / 6.6)
        boxes = [
            [("name", folder), *wrapped("", purpose(folder), columns),
             *wrapped("note", "imports " + ", ".join(sorted(graph[folder]) or "-"), columns)]
            for folder in folders
        ]  # fmt: skip
        parts += [box(10 + i * (width + 6), y, width, lines) for i, lines in enumerate(boxes)]
        y += ROW * max(map(len, boxes)) + 20
    return page(parts, y)


def draw_batch() -> str:
    """Return the picture of the way of a batch through the files, for four calls."""
    import torch

    from everypair.torch import PairLoss

    rng = np.random.default_rng(0)
    scores, target = rng.normal(size=1000).astype("f"), rng.normal(size=1000)
    tensor, loss, ordered = (
        torch.tensor(scores, requires_grad=True),
        PairLoss(),
        PairLoss(pairs="ordered"),
    )
    labels = target > 1.0
    calls: dict[str, Callable[[], object]] = {
        "ep.pair_loss_and_grad(scores, labels)": lambda: ep.pair_loss_and_grad(scores, labels),
        'ep.pair_loss_and_grad(scores, target, pairs="ordered")': lambda: ep.pair_loss_and_grad(
            scores, target, pairs="ordered"
        ),
        "PairLoss()(tensor, labels), backward included": lambda: loss(
            tensor, torch.tensor(labels)
        ).backward(),
        'PairLoss(pairs="ordered")(tensor, target), backward included': lambda: ordered(
            tensor, torch.tensor(target)
        ).backward(),
    }
    parts, y = [], 24.0
    for title, call in calls.items():
        parts.append(f'<text class="name" x="10" y="{y}">{escape(title)}</text>')
        x, y, tallest = 10.0, y + 8, 0
        for place, functions in calls_of(call):
            lines: list[Line] = [("name", place), *(("", name) for name in functions)]
            width = 7.1 * max(len(line) for _, line in lines) + 18
            if x + width > WIDTH - 10:
                x, y, tallest = 10.0, y + ROW * tallest + 18, 0
            parts.append(box(x, y, width, lines))
            x, tallest = x + width + 6, max(tallest, len(lines))
        y += ROW * tallest + 40
    return page(parts, y)


if __name__ == "__main__":
    (ASSETS / "folders.svg").write_text(draw_folders())
    (ASSETS / "batch.svg").write_text(draw_batch())
