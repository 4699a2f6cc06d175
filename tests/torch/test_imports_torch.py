"""The subpackage stays optional, and what imports what."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import everypair.torch

SOURCE = Path(everypair.torch.__file__).parent


def run(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_the_core_does_not_load_torch():
    assert run("import sys, everypair; sys.exit('torch' in sys.modules)").returncode == 0


def test_without_torch_the_extra_is_named():
    ran = run("import sys; sys.modules['torch'] = None; import everypair.torch")
    assert ran.returncode
    assert "ImportError: everypair.torch needs PyTorch" in ran.stderr
    assert "pip install everypair[torch]" in ran.stderr


def test_every_public_name_is_there_and_documented():
    for name in everypair.torch.__all__:
        assert getattr(everypair.torch, name).__doc__


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda path: path.stem)
def test_files_stay_readable(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    assert "print(" not in text.replace(">>> print(", "")
