"""Imports point downward, folder by folder, and optional packages stay optional."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import everypair

SOURCE = Path(everypair.__file__).parent

# Each folder may import from itself, from those that stand before it in its own paragraph, and from
# the core, which is the first one. `front` has the modules at the root, except `losses`, on which
# streaming builds.
ORDER = """
surrogates arrays inputs kernel metrics row_sums losses streaming front

torch/triton/common torch/triton/smooth torch/triton torch/collectives torch torch/row_sums
torch/training

sklearn

boosting

jax

experiments experiments/data experiments/training experiments/families experiments/contenders
experiments/search experiments/report experiments/figures experiments/commands
"""
CORE, *STACKS = [paragraph.split() for paragraph in ORDER.split("\n\n")]
# Packages whose own file gathers the public names of their folders, and the command on top of all.
GATHERERS = {"everypair", "everypair.torch", "everypair.experiments", "everypair.cli"}
# The private parts of torch that everypair uses are named in one module, below all others.
SHARED = {"everypair.torch._compat"}
FOLDERS = [folder for stack in [CORE, *STACKS] for folder in stack]

# The experiments are written with what every user can import.
PUBLIC_ONLY = {
    "experiments": {"everypair"}
    | {f"everypair.{name}" for name in ("boosting", "naive", "sklearn", "surrogates", "torch")}
}

# A subpackage: how its error calls the dependency, and what `import everypair` must not load.
EXTRAS = {
    "torch": ("PyTorch", "torch"),
    "sklearn": ("scikit-learn", "sklearn"),
    "jax": ("JAX", "jax"),
    "dask": ("Dask", "dask"),
}


def module_of(path):
    """Return the dotted name of a file of the package."""
    parts = ("everypair", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def folder_of(module):
    """Return the folder that a module lies in; a package belongs to its own folder."""
    if module == "everypair.losses":
        return "losses"
    path = FILES[module].parent if module in FILES else SOURCE
    return "front" if path == SOURCE else path.relative_to(SOURCE).as_posix()


@cache
def imported_by(module):
    """Return the modules of everypair that a file imports: anywhere, for types, or by a string."""
    names, strings, imports_strings = set(), {""}, False
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if is_module(name) else node.module for name in members}
            imports_strings |= node.module == "importlib"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.add(node.value)
    if imports_strings and module not in GATHERERS:
        # A string is a whole name, or the end of a name that begins like another string.
        starts = {string for string in strings if string.startswith("everypair.")} | {""}
        names |= {start + end for start in starts for end in strings} & FILES.keys()
    return {name for name in names if name.partition(".")[0] == "everypair"} - {module}


def is_module(name):
    # The compiled kernel may be missing; the file that describes its types never is.
    return name in FILES or name == "everypair._native"


def modules_in(folder):
    return [module for module in FILES if folder_of(module) == folder]


def test_every_folder_has_its_place():
    assert {folder_of(module) for module in FILES} == set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_point_downward(folder):
    stack = next(stack for stack in [CORE, *STACKS] if folder in stack)
    allowed = {*stack[: stack.index(folder) + 1], *(() if stack is CORE else CORE)}
    # The compiled kernel and the public names of the packages may be imported from everywhere.
    public = PUBLIC_ONLY.get(stack[0], set()) | SHARED | {"everypair._native"}
    for module in set(modules_in(folder)) - GATHERERS:
        upward = {m for m in imported_by(module) - public if folder_of(m) not in allowed}
        assert not upward, f"{module} imports {sorted(upward)}"


@pytest.mark.parametrize("unit", ["module", "folder"])
def test_no_cycle(unit):
    graph = {}
    for module in FILES.keys() - (GATHERERS if unit == "folder" else set()):
        name = folder_of if unit == "folder" else str
        imported = {name(m) for m in imported_by(module) - SHARED if m in FILES}
        graph.setdefault(name(module), set()).update(imported - {name(module)})
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"{unit}s import one another: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("package", PUBLIC_ONLY)
def test_uses_public_names_only(package):
    for module in (m for m in FILES if m.startswith(f"everypair.{package}")):
        outside = {m for m in imported_by(module) if not m.startswith(f"everypair.{package}")}
        assert outside <= PUBLIC_ONLY[package], module
        for node in ast.walk(ast.parse(FILES[module].read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in PUBLIC_ONLY[package]:
                public = {*import_module(node.module).__all__, "torch"}
                hidden = {alias.name for alias in node.names} - public
                assert not hidden, f"{module} imports {hidden} from {node.module}"


def test_every_module_says_what_it_holds():
    for module, path in FILES.items():
        assert ast.get_docstring(ast.parse(path.read_text())), f"{module} has no docstring"


def test_the_core_needs_only_numpy_and_the_standard_library():
    program = """
import json, sys
import numpy
before = set(sys.modules)
import everypair
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""
    new = set(json.loads(_run(program).stdout))
    assert {name for name in new if name not in sys.stdlib_module_names} <= {"everypair", "numpy"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_missing_package_names_the_extra_to_install(extra):
    needs, package = EXTRAS[extra]
    ran = _run(f"import sys; sys.modules[{package!r}] = None; import everypair.{extra}")
    assert ran.returncode
    for part in (f"everypair.{extra} needs {needs}", f"pip install '.[{extra}]'"):
        assert part in ran.stderr, f"{part!r} is not in {ran.stderr!r}"


@pytest.mark.parametrize("name", ["", *(f".{extra}" for extra in EXTRAS), ".surrogates", ".naive"])
def test_every_public_name_is_there_and_documented(name):
    module = import_module(f"everypair{name}")
    for public in module.__all__:
        assert getattr(module, public) is not None
        is_data = public == "__version__" or public.isupper()
        assert is_data or getattr(module, public).__doc__, f"{public} has no docstring"


def _run(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
