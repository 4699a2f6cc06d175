"""Write text between the markers of pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path


def fill(pages: Iterable[Path], texts: Mapping[str, str]) -> None:
    """Replace what stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``, or ``<!-- end -->``.

    `texts` has the new text by name. ValueError is raised if no page has a marker of this name.
    """
    names = "|".join(map(re.escape, texts))
    marked = re.compile(rf"(<!-- ({names}) -->\n).*?(<!-- (?:/\2|end) -->)", re.DOTALL)
    missing = set(texts)

    def replaced(found: re.Match[str]) -> str:
        missing.discard(found[2])
        return found[1] + texts[found[2]] + found[3]

    for page in pages:
        page.write_text(marked.sub(replaced, page.read_text()))
    if missing:
        raise ValueError(f"no page has the markers {', '.join(sorted(missing))}; add them")
