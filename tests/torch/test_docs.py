"""Every Python block of the pages on PyTorch runs, and prints what the page shows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "torch").glob("*.md"))


def run_page_module():
    spec = importlib.util.spec_from_file_location("run_page", DOCS / "run_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_the_page_prints_what_the_page_shows(page, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    runner = run_page_module()
    if not runner.blocks(page):
        pytest.skip("no block of this page can run here")
    with torch.random.fork_rng():
        runner.run(page, tmp_path)


def test_there_are_pages():
    assert {"tutorial", "from-bce", "from-libauc"} <= {page.stem for page in PAGES}


def test_a_page_with_wrong_output_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n")
    with pytest.raises(AssertionError, match=r"page.md, line 2: the page says\n2"):
        run_page_module().run(page, tmp_path)
    page.write_text("text\n\n```python\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run_page_module().run(page, tmp_path)
    assert caught.traceback[-1].lineno == 3
    page.write_text("```python\n# needs: nothing_of_the_kind\nimport nothing_of_the_kind\n```\n")
    assert run_page_module().blocks(page) == []
    page.write_text("<!-- needs: nothing_of_the_kind -->\n\n```python\n1 / 0\n```\n")
    assert run_page_module().blocks(page) == []
