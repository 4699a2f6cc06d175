"""Each folder has a budget of lines. ``python -m tests.test_budgets`` prints what is used of it.

Lines are the cost of a library that one person can take over. A new capability that needs more
raises the budget in the same commit, says why, and looks first for what it makes superfluous.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIXES = {".py", ".pyi", ".cpp", ".hpp"}

# The folder, its budget of lines (docstrings included), and what lies in it. A file counts in the
# deepest folder that is named here.
BUDGETS = (
    ("src/everypair", 1_275, "the front: public names, losses on arrays, the oracle, the command"),
    ("src/everypair/surrogates", 1_305, "the mathematics as data, and its form for kernels"),
    ("src/everypair/arrays", 2_165, "pair losses and row sums for NumPy, torch and JAX"),
    ("src/everypair/inputs", 1_095, "validation and conversion of what users pass"),
    ("src/everypair/kernel", 795, "the choice of what computes a batch; the compiled kernel"),
    ("src/everypair/metrics", 890, "AUC, partial AUC, average precision, DeLong"),
    ("src/everypair/row_sums", 380, "sums over the other rows of each row, soft ranks"),
    ("src/everypair/streaming", 1_530, "rows that arrive in parts"),
    ("src/everypair/boosting", 1_040, "objectives for XGBoost, LightGBM and CatBoost"),
    ("src/everypair/sklearn", 1_320, "linear estimators"),
    ("src/everypair/jax", 765, "the adapter for JAX, with loops for its CPU backend"),
    ("src/everypair/torch", 4_940, "the adapter for PyTorch, training tools"),
    ("src/everypair/torch/triton", 4_300, "kernels for NVIDIA GPUs"),
    ("src/everypair/experiments", 13_410, "the commands: experiments on tables and networks"),
    ("src/native", 6_990, "the compiled kernel, in lines of 110 columns"),
    ("benchmarks", 4_100, "speed and accuracy, measured and checked against limits"),
    ("studies", 4_690, "research and its small tests; not in the wheel"),
    ("tests", 15_500, "tests of the library"),
    ("tests/experiments", 7_970, "tests of the experiments"),
)


def lines_by_folder():
    """Return the lines of the tracked source files, by the folder that they count in."""
    folders = sorted((folder for folder, _, _ in BUDGETS), key=len, reverse=True)
    listing = ["git", "ls-files", "-z", "--", *folders]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = Counter()
    for path in map(Path, filter(None, names.split("\0"))):
        if path.suffix in SUFFIXES and (ROOT / path).exists():
            folder = next(name for name in folders if Path(name) in path.parents)
            lines[folder] += (ROOT / path).read_bytes().count(b"\n")
    return lines


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the tracked files are not known")
def test_every_folder_keeps_its_budget():
    lines = lines_by_folder()
    over = {name: lines[name] - budget for name, budget, _ in BUDGETS if lines[name] > budget}
    assert not over, f"lines over the budget, by folder: {over}"


if __name__ == "__main__":
    used = lines_by_folder()
    rows = [f"{'folder':28}{'lines':>8}{'budget':>8}  purpose"]
    rows += [f"{name:28}{used[name]:8,}{limit:8,}  {purpose}" for name, limit, purpose in BUDGETS]
    sys.stdout.write("\n".join(rows) + "\n")
