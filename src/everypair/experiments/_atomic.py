"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing"]


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a temporary name beside `path`; what is written there takes its place at the end.

    If the block raises, nothing is left. A folder that somebody else finished first is kept.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "scores.csv"
    >>> with replacing(target) as temporary:
    ...     _ = temporary.write_text("0.5")
    >>> target.read_text(), [file.name for file in target.parent.iterdir()]
    ('0.5', ['scores.csv'])
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The ending stays, since writers choose their format by it.
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.part{path.suffix}")
    try:
        yield temporary
        if not (temporary.is_dir() and path.is_dir()):
            os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink(missing_ok=True)
