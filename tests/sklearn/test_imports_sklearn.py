"""The subpackage stays optional, and what imports what."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import everypair.sklearn

from ..layers import assert_no_cycle, imported_modules

SOURCE = Path(everypair.sklearn.__file__).parent

# Each module may import from the subpackage only what stands here: downward.
MAY_IMPORT = {
    "_objective": set(),
    "_scaling": set(),
    "_smoothing": set(),
    "_thresholds": set(),
    "_solvers": {"_objective", "_scaling"},
    "_training": {"_objective", "_scaling", "_smoothing", "_solvers"},
    "_estimator": {"_objective", "_solvers", "_thresholds", "_training"},
    "_classifier": {"_estimator", "_thresholds", "_training"},
    "_path": {"_estimator", "_objective", "_thresholds", "_training"},
    "__init__": {"_classifier", "_path"},
}
# And from the core: public modules alone, and the package itself for `surrogates`.
FROM_THE_CORE = {"everypair", "everypair.losses", "everypair.metrics", "everypair.surrogates"}


def run(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_the_core_does_not_load_scikit_learn():
    program = "import sys, everypair; sys.exit('sklearn' in sys.modules or 'scipy' in sys.modules)"
    assert run(program).returncode == 0


def test_without_scikit_learn_the_extra_is_named():
    ran = run("import sys; sys.modules['sklearn'] = None; import everypair.sklearn")
    assert ran.returncode
    assert "ImportError: everypair.sklearn needs scikit-learn" in ran.stderr
    assert "pip install everypair[sklearn]" in ran.stderr


def test_every_public_name_is_there_and_documented():
    for name in everypair.sklearn.__all__:
        assert getattr(everypair.sklearn, name).__doc__


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda path: path.stem)
def test_imports_point_downward(path):
    assert path.stem in MAY_IMPORT, f"say in MAY_IMPORT where {path.stem} stands"
    allowed = {f"everypair.sklearn.{name}" for name in MAY_IMPORT[path.stem]} | FROM_THE_CORE
    assert imported_modules(path) <= allowed


def test_the_layers_have_no_cycle():
    assert_no_cycle(MAY_IMPORT)


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda path: path.stem)
def test_files_stay_readable(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    assert "print(" not in text.replace(">>> print(", "")
