"""What imports what, read from the source."""

from __future__ import annotations

import ast
from pathlib import Path

import everypair

ROOT = Path(everypair.__file__).parent


def imported_modules(path):
    """Return the modules of everypair that a file imports anywhere, the ones for types included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if is_module(name) else node.module for name in names}
    return {name for name in found if name.partition(".")[0] == "everypair"}


def is_module(name):
    package, *inside = name.split(".")
    place = ROOT.joinpath(*inside)
    # The compiled kernel may be missing; what describes its types never is.
    return package == "everypair" and (
        place.is_dir() or place.with_suffix(".py").exists() or place.with_suffix(".pyi").exists()
    )


def assert_no_cycle(may_import):
    """Place modules from the lowest upward until none is left."""
    placed = set()
    while left := may_import.keys() - placed:
        free = {name for name in left if may_import[name] & may_import.keys() <= placed}
        assert free, f"a cycle among {sorted(left)}"
        placed |= free
