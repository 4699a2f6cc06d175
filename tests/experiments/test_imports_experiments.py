"""What imports what among the experiments, and that they use public names only."""

from __future__ import annotations

import ast
from importlib import import_module

import pytest

from ..layers import ROOT, imported_modules

SOURCE = ROOT / "experiments"
PACKAGE = "everypair.experiments"
PUBLIC = {"everypair", "everypair.torch", "everypair.surrogates", "everypair.naive"}

# From the ground up. A module may import what stands before it, in its own layer too.
LAYERS = {
    "ground": ("__init__", "errors", "plan", "seeds", "registry", "labels", "_atomic", "_progress"),
    "data": (
        *("_download", "_decoding", "_archives", "_images", "_encoder", "_tables"),
        *("augment", "sources", "splits"),
    ),
    "training": (
        *("models", "objectives", "optimisers", "batches", "measuring", "training", "side_by_side"),
        *("saved", "winner"),
    ),
    "grid": (
        *("presets", "_owners", "_database", "_layout", "_cells", "store"),
        *("_workers", "runner", "work", "_options", "_display"),
    ),
    "report": (
        *("selection", "report.curves", "report.tables", "report.wording", "report.study"),
        *("report._charts", "report._html", "report._inside", "report._sections"),
        *("report.figures", "report.terminal", "report.page", "report"),
    ),
    "tools": ("_pictures", "timing", "_timing_plot", "geometry", "evaluation"),
    "commands": (
        *("commands.experiment", "commands.report", "commands.predict"),
        *("commands.timing", "commands.geometry", "commands.evaluate", "commands"),
    ),
}
ORDER = [name for layer in LAYERS.values() for name in layer]


def name_of(path):
    """Return the name inside the experiments, a package's being that of its folder."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


@pytest.mark.parametrize("name", FILES)
def test_imports_point_downward(name):
    assert name in ORDER, f"say in LAYERS where {name} stands"
    imported = {m for m in imported_modules(FILES[name]) if m.startswith(PACKAGE)}
    imported = {m.removeprefix(PACKAGE).lstrip(".") or "__init__" for m in imported}
    upward = imported - set(ORDER[: ORDER.index(name)])
    assert not upward, f"{name} imports {sorted(upward)}, which do not stand below it"


def test_the_layers_hold_every_module_once():
    assert len(ORDER) == len(set(ORDER))
    assert set(ORDER) == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_everything_else_is_used_by_its_public_name(name):
    outside = {m for m in imported_modules(FILES[name]) if not m.startswith(PACKAGE)}
    assert outside <= PUBLIC
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module in PUBLIC:
            public = import_module(node.module).__all__
            hidden = [a.name for a in node.names if a.name not in public and a.name != "torch"]
            assert not hidden, f"{name} imports {hidden} from {node.module}"


@pytest.mark.parametrize("name", FILES)
def test_files_stay_readable(name):
    assert len(FILES[name].read_text().splitlines()) <= 300
