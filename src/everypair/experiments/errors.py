"""Errors that the user can correct: the command line prints one line and exits with code 2."""

from __future__ import annotations

import os
from pathlib import Path


class UserError(ValueError):
    """The message names the argument or file, the rule, what was found, and what to do."""


def missing(path: Path) -> str:
    """Return why there is no file to read at a path."""
    if path.exists():
        return f"{path} is a pipe or a device; save its content as a file first"
    if path.is_symlink():
        return f"{path} is a link to {os.readlink(path)}, which does not exist"
    return f"{path}: no such file"
