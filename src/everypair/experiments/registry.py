"""Tables of names for the command line, to which users can add entries.

Models, losses, optimisers, data sets and presets are entries of such tables. The environment
variable EVERYPAIR_EXTENSIONS lists Python files or modules, separated by commas, that add entries.
Worker processes inherit the variable, so all of them have the same entries.

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

EXTENSIONS = "EVERYPAIR_EXTENSIONS"
"""The environment variable that lists the user's files or modules."""

T = TypeVar("T")


class Registry(MutableMapping[str, T]):
    """A mapping from names to entries of one kind. Reading it first loads the user's extensions.

    Parameters
    ----------
    kind : str
        The word for an entry in error messages.
    entries : mapping
        The entries of the library itself.
    """

    def __init__(self, kind: str, entries: Mapping[str, T]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def find(self, name: str) -> T:
        """Return the entry of this name; raise UserError with a suggestion if it is unknown."""
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
    """Import the modules and Python files that EVERYPAIR_EXTENSIONS lists, each once."""
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
                f"cannot be imported: {error}."
            ) from error


def _import_file(name: str, path: Path) -> None:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs: the file reads the tables, which would import it again.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
