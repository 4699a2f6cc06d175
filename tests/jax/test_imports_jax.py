"""The subpackage stays optional, and what imports what."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import everypair.jax

from ..layers import assert_no_cycle, imported_modules

SOURCE = Path(everypair.jax.__file__).parent

# Each module may import from the subpackage only what stands here: downward.
MAY_IMPORT = {
    "_compensated": set(),
    "_sorted_moments": {"_compensated"},
    "_derivatives": {"_sorted_moments"},
    "_inputs": {"_compensated", "_sorted_moments"},
    "_functional": {"_derivatives", "_inputs"},
    "__init__": {"_functional"},
}
# And from the layers below: the mathematics and the door for input.
FROM_THE_CORE = {"_inputs", "surrogates"}


def run(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_the_core_does_not_load_jax():
    assert run("import sys, everypair; sys.exit('jax' in sys.modules)").returncode == 0


def test_without_jax_the_extra_is_named():
    ran = run("import sys; sys.modules['jax'] = None; import everypair.jax")
    assert ran.returncode
    assert "ImportError: everypair.jax needs JAX" in ran.stderr
    assert "pip install everypair[jax]" in ran.stderr


def test_every_public_name_is_there_and_documented():
    for name in everypair.jax.__all__:
        assert getattr(everypair.jax, name).__doc__


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda path: path.stem)
def test_imports_point_downward(path):
    assert path.stem in MAY_IMPORT, f"say in MAY_IMPORT where {path.stem} stands"
    allowed = {f"everypair.jax.{name}" for name in MAY_IMPORT[path.stem]}
    allowed |= {f"everypair.{name}" for name in FROM_THE_CORE}
    assert imported_modules(path) - {"everypair.jax"} <= allowed


def test_the_layers_have_no_cycle():
    assert_no_cycle(MAY_IMPORT)


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda path: path.stem)
def test_files_stay_readable(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    assert "print(" not in text.replace(">>> print(", "")
