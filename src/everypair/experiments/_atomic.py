"""Write files and folders atomically: a reader sees the old content or the new one, never a part.

Written by hand because the packages for atomic writes handle single files only, and decoded images
are kept in a folder. Only the standard library is needed.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; it replaces `path` when the block ends.

    If the block raises, nothing is left. If `path` is a folder by then, because another process
    was faster, that folder is kept.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "scores.csv"
    >>> with replacing(target) as temporary:
    ...     _ = temporary.write_text("0.5")
    >>> target.read_text(), [file.name for file in target.parent.iterdir()]
    ('0.5', ['scores.csv'])
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix is kept, because writers choose the format by it.
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.part{path.suffix}")
    try:
        yield temporary
        if not (temporary.is_dir() and path.is_dir()):
            os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink(missing_ok=True)
