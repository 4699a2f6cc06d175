"""The subpackage stays optional, and what imports what."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import everypair.torch

from ..layers import assert_no_cycle, imported_modules

SOURCE = Path(everypair.torch.__file__).parent

# Each module may import from the subpackage only what stands here: downward.
MAY_IMPORT = {
    "_inputs": set(),
    "_compensated": set(),
    "_runs": {"_compensated"},
    "_tensor_moments": {"_compensated", "_runs"},
    "_kernel": {"_inputs"},
    "_triton_cells": set(),
    "_triton_scan": {"_triton_cells"},
    "_triton_buckets": {"_triton_cells", "_triton_scan"},
    "_triton_pairs": set(),
    "_triton": {"_triton_buckets", "_triton_cells", "_triton_pairs"},
    "_columns": {"_inputs", "_kernel", "_tensor_moments", "_triton"},
    "_transforms": {"_columns"},
    "_library": {"_columns", "_inputs", "_transforms"},
    "_ops": {"_columns", "_inputs", "_library", "_transforms"},
    "_functional": {"_columns", "_inputs", "_ops"},
    "_module": {"_functional", "_inputs", "_ops"},
    "_replay": set(),
    "_large_batch": {"_replay"},
    "_sampler_plan": set(),
    "_sampler": {"_sampler_plan"},
    "_aucm": {"_inputs"},
    "_pesg": {"_aucm"},
    "_sag": set(),
    "_epoch_scores": {"_inputs"},
    "_divergence": {"_epoch_scores"},
    "_monitor_plot": {"_divergence"},
    "_monitor": {"_divergence", "_epoch_scores", "_monitor_plot"},
    "_lightning": {"_monitor"},
    "_team": set(),
    "__init__": {
        "_aucm",
        "_functional",
        "_large_batch",
        "_lightning",
        "_module",
        "_monitor",
        "_pesg",
        "_sag",
        "_sampler",
        "_team",
    },
}
# And from the layers below: the mathematics, the door for input, and the moments.
FROM_THE_CORE = {"_groups", "_inputs", "_moments", "_threads", "surrogates"}


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
def test_imports_point_downward(path):
    assert path.stem in MAY_IMPORT, f"say in MAY_IMPORT where {path.stem} stands"
    allowed = {f"everypair.torch.{name}" for name in MAY_IMPORT[path.stem]}
    allowed |= {f"everypair.{name}" for name in FROM_THE_CORE}
    assert imported_modules(path) <= allowed


def test_the_layers_have_no_cycle():
    assert_no_cycle(MAY_IMPORT)


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda path: path.stem)
def test_files_stay_readable(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    assert "print(" not in text.replace(">>> print(", "")
