"""Tables of what can be named on the command line, open to a user's own entries.

Models, losses and optimisers are data: a name and what it stands for. A user's file adds to the
tables; EVERYPAIR_EXTENSIONS names such files or modules, separated by commas, and since worker
processes inherit it, what is added is known to all of them.

>>> shapes = Registry("shape", {"circle": 0, "square": 4})
>>> shapes["triangle"] = 3
>>> shapes.find("triangle")
3
>>> shapes.find("sqare")
Traceback (most recent call last):
    ...
everypair.experiments.errors.UserError: shape must be one of circle, square, triangle; got 'sqare'.
Did you mean square?
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import TypeVar

from everypair.experiments.errors import UserError

__all__ = ["EXTENSIONS", "Registry", "load_extensions"]

EXTENSIONS = "EVERYPAIR_EXTENSIONS"
"""The environment variable that names a user's files."""

T = TypeVar("T")


class Registry(MutableMapping[str, T]):
    """A table from names to things of one kind, the user's own included.

    Parameters
    ----------
    kind : str
        What an entry is called in messages.
    entries : mapping
        What the library itself knows.
    """

    def __init__(self, kind: str, entries: Mapping[str, T]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def find(self, name: str) -> T:
        """Return the entry of this name; an unknown one is the user's mistake."""
        if name in self:
            return self._entries[name]
        near = difflib.get_close_matches(name, self, n=1)
        advice = f" Did you mean {near[0]}?" if near else ""
        raise UserError(f"{self.kind} must be one of {', '.join(self)}; got {name!r}.{advice}")

    def __getitem__(self, name: str) -> T:
        load_extensions()
        return self._entries[name]

    def __setitem__(self, name: str, entry: T) -> None:
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        load_extensions()
        return iter(self._entries)

    def __len__(self) -> int:
        load_extensions()
        return len(self._entries)


def load_extensions() -> None:
    """Import what EVERYPAIR_EXTENSIONS names, each once: modules, or paths of Python files."""
    for name in filter(None, map(str.strip, os.environ.get(EXTENSIONS, "").split(","))):
        path = Path(name).resolve()
        module = path.stem if path.suffix == ".py" else name
        if module in sys.modules:
            continue
        try:
            _import_file(module, path) if path.suffix == ".py" else importlib.import_module(module)
        except (ImportError, OSError) as error:
            raise UserError(
                f"{EXTENSIONS} must name modules or Python files that can be imported; {name!r} "
                f"cannot: {error}."
            ) from error


def _import_file(name: str, path: Path) -> None:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Before it runs: it asks the tables for their entries, which would import it again.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
