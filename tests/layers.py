"""What imports what, read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
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


class Subpackage:
    """What holds for every subpackage with a dependency of its own.

    A subclass whose name begins with Test says of which, and pytest runs it once for each file.
    """

    module: object
    needs: str  # what its error calls the dependency
    loads: tuple[str, ...]  # packages that the core must leave alone, the dependency first
    may_import: dict[str, set[str]]  # a module, and those of the subpackage below it
    from_the_core: set[str]

    def pytest_generate_tests(self, metafunc):
        if "path" in metafunc.fixturenames:
            files = sorted(Path(self.module.__file__).parent.glob("*.py"))
            metafunc.parametrize("path", files, ids=lambda path: path.stem)

    def test_the_core_does_not_load_the_dependency(self):
        program = "import sys, everypair; sys.exit(' '.join({!r} & sys.modules.keys()) or 0)"
        ran = _run(program.format(set(self.loads)))
        assert ran.returncode == 0, f"with the core comes: {ran.stderr}"

    def test_without_the_dependency_the_extra_is_named(self):
        name = self.module.__name__
        ran = _run(f"import sys; sys.modules[{self.loads[0]!r}] = None; import {name}")
        assert ran.returncode, f"{name} can do without {self.loads[0]}"
        extra = name.removeprefix("everypair.")
        for part in (f"ImportError: {name} needs {self.needs}", f"pip install everypair[{extra}]"):
            assert part in ran.stderr, f"{part!r} is not in {ran.stderr!r}"

    def test_every_public_name_is_there_and_documented(self):
        for name in self.module.__all__:
            assert getattr(self.module, name).__doc__, f"{name} has no docstring"

    def test_imports_point_downward(self, path):
        assert path.stem in self.may_import, f"say in MAY_IMPORT where {path.stem} stands"
        allowed = {f"{self.module.__name__}.{name}" for name in self.may_import[path.stem]}
        allowed |= {f"everypair.{name}" for name in self.from_the_core}
        upward = imported_modules(path) - allowed
        assert not upward, f"{path.stem} imports {sorted(upward)}, which do not stand below it"

    def test_the_layers_have_no_cycle(self):
        assert_no_cycle(self.may_import)

    def test_files_stay_readable(self, path):
        text = path.read_text()
        assert len(text.splitlines()) <= 300, f"{path.name} has more than 300 lines"
        assert "print(" not in text.replace(">>> print(", ""), f"{path.name} prints"


def _run(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
