"""What imports what, and what `import everypair` costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import everypair

from .layers import assert_no_cycle, imported_modules

SOURCE = Path(everypair.__file__).parent

# Each module may import from the package only what stands here: downward. Subpackages have tables
# of their own.
MAY_IMPORT = {
    "_version": set(),
    "surrogates": set(),
    "_arrays": set(),
    "_groups": set(),
    "_inputs": {"_arrays", "_groups"},
    "naive": {"surrogates", "_inputs"},
    "_threads": set(),
    "_sorted": set(),
    "_numpy": {"_sorted"},
    "_moments": {"_inputs", "_native", "_numpy", "_threads"},
    "losses": {"surrogates", "_inputs", "_moments"},
    "metrics": {"_inputs", "_moments"},
    "cli": {"experiments"},
    "__init__": {"_threads", "_version", "losses", "metrics", "naive", "surrogates"},
}


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda p: p.stem)
def test_imports_point_downward(path):
    assert path.stem in MAY_IMPORT, f"say in MAY_IMPORT where {path.stem} stands"
    imported = {f"{name}.__init__".split(".")[1] for name in imported_modules(path)}
    assert imported <= MAY_IMPORT[path.stem]


def test_the_layers_have_no_cycle():
    assert_no_cycle(MAY_IMPORT)


def test_imports_only_numpy_and_the_standard_library():
    program = """
import json, sys
import numpy
before = set(sys.modules)
import everypair
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    new = set(json.loads(ran.stdout))
    assert "difflib" not in new
    assert {name for name in new if name not in sys.stdlib_module_names} == {"everypair"}


def test_importing_is_quick():
    program = """
import time
import numpy
start = time.perf_counter()
import everypair
print(time.perf_counter() - start)
"""
    seconds = [
        float(
            subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
        )
        for _ in range(5)
    ]
    assert min(seconds) < 0.15


def test_every_public_name_is_there_and_documented():
    for name in everypair.__all__:
        assert getattr(everypair, name) is not None
        assert name == "__version__" or getattr(everypair, name).__doc__
    for module in (everypair.surrogates, everypair.naive):
        assert all(hasattr(module, name) for name in module.__all__)


def test_files_stay_readable():
    for path in SOURCE.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 300, path.name
