"""Installing without a compiler, or with one that is too old, gives the pure Python package."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("scikit_build_core") or not shutil.which("false"),
    reason="needs scikit-build-core, and the program `false`",
)


def build_wheel(folder, compiler, **environment):
    """Build a wheel of this checkout with such a C++ compiler."""
    script = f"""
from scikit_build_core.build import build_wheel
build_wheel({str(folder)!r}, {{"build-dir": {str(folder / "build")!r}}})
"""
    variables = {k: v for k, v in os.environ.items() if k != "EVERYPAIR_NATIVE"}
    path = os.pathsep.join([str(Path(sys.executable).parent), variables["PATH"]])
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=variables | {"PATH": path, "CXX": compiler} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def old_compiler(folder):
    """Return a C++ compiler that does not know C++20, as GCC 9 does not."""
    path = folder / "g++-old"
    path.write_text(
        '#!/bin/sh\nfor a; do case $a in *c++20|*c++2a|*++23) exit 1;; esac; done\nexec c++ "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("compiler", ["/bin/false", "old"])
def test_without_a_fit_compiler_the_wheel_is_pure_python(tmp_path, compiler):
    if compiler == "old" and not shutil.which("c++"):
        pytest.skip("needs a compiler")
    build = build_wheel(tmp_path, old_compiler(tmp_path) if compiler == "old" else compiler)
    assert build.returncode == 0, build.stdout + build.stderr
    assert [wheel.name.endswith("-py3-none-any.whl") for wheel in tmp_path.glob("*.whl")] == [True]
    assert "installed without its compiled kernel" in build.stdout + build.stderr


def test_insisting_on_the_kernel_without_a_compiler_is_an_error(tmp_path):
    build = build_wheel(tmp_path, "/bin/false", EVERYPAIR_NATIVE="ON")
    assert build.returncode != 0
    assert not list(tmp_path.glob("*.whl"))
    output = " ".join((build.stdout + build.stderr).split())
    assert "no C++ compiler works. It needs GCC 11 or Clang 14" in output
    assert "EVERYPAIR_NATIVE=OFF pip install ." in output
