"""Run the Python blocks of a page, in order and in one namespace, and compare their output.

A block is fenced with ```python. A ```text block right after it is its expected output, with ...
for whatever may differ between machines. A block that begins with ``# needs: package`` is skipped
if that package is missing, and so is a whole page that begins with ``<!-- needs: package -->``.

    python docs/run_page.py docs/torch/tutorial.md --to docs/torch    # draws its figures again

Sybil was considered instead. Its parsers find the blocks, but the comparison of a block's output
with the block that follows, the skip rule and the command above would still be written by hand,
so that this module would not become shorter.
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import io
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["blocks", "run"]

_FENCED = re.compile(
    r"^```python\n(.*?)^```\n(?:\s*^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)
_NEEDS = re.compile(r"(?:#|<!--) needs: (\w+)")
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    """Code, its expected output (None: not checked), and its first line in the page."""

    code: str
    prints: str | None
    line: int


def blocks(page: Path) -> list[Block]:
    """Return the Python blocks of a page that can run here."""
    text = page.read_text(encoding="utf-8")
    if not _can_run(text):
        return []
    found = (
        Block(match[1], match[2], text.count("\n", 0, match.start(1)))
        for match in _FENCED.finditer(text)
    )
    return [block for block in found if _can_run(block.code)]


def run(page: Path, to: Path) -> None:
    """Run a page with `to` as the working directory; raise if a block prints something else."""
    checker = doctest.OutputChecker()
    namespace: dict[str, Any] = {"__name__": page.stem}
    found = blocks(page)
    with _inside(to):
        for block in found:
            printed = io.StringIO()
            # Prepend empty lines, so that a traceback shows the line number of the page.
            code = compile("\n" * block.line + block.code, str(page), "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, namespace)
            got = printed.getvalue()
            if block.prints is not None and not checker.check_output(block.prints, got, _FLAGS):
                raise AssertionError(
                    f"{page.name}, line {block.line + 1}: the page says\n{block.prints}\n"
                    f"but the code prints\n{got}"
                )


def _can_run(text: str) -> bool:
    """Return whether the package that a page or a block needs is installed."""
    needed = _NEEDS.match(text)
    return needed is None or find_spec(needed[1]) is not None


@contextlib.contextmanager
def _inside(folder: Path) -> Any:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--to", type=Path, default=Path(), help="folder for the page's files")
    given = parser.parse_args()
    run(given.page.resolve(), given.to.resolve())
