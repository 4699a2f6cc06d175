"""The pages: code that looks tested is tested, links lead to files, and every page is linked."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def linked_files(page):
    """Return the files that a page links to; addresses of other sites are left out."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    targets = [match[1] for match in LINK.finditer(text)]
    return {(page.parent / target).resolve() for target in targets if "://" not in target}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_blocks_are_doctests_and_links_exist(page):
    if page.parent.name != "torch":  # tests/torch/test_docs.py runs the blocks of those pages
        for language, code in BLOCK.findall(page.read_text(encoding="utf-8")):
            # A sketch that cannot run alone is fenced with ```py.
            assert language != "python" or ">>> " in code, code
    missing = [path for path in linked_files(page) if not path.exists()]
    assert not missing


def test_every_page_can_be_reached_from_the_readme():
    seen, queue = set(), [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page not in seen:
            seen.add(page)
            queue += [path for path in linked_files(page) if path.suffix == ".md"]
    assert not set(PAGES) - seen


def test_the_picture_of_the_folders_is_drawn_from_the_code():
    name = ROOT / "docs" / "draw_architecture.py"
    spec = importlib.util.spec_from_file_location("draw_architecture", name)
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    picture = ROOT / "docs" / "assets" / "folders.svg"
    assert drawing.draw_folders() == picture.read_text(), f"run: python {name.relative_to(ROOT)}"
