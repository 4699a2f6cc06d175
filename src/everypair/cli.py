"""The command ``everypair``: every mistake is one line and a number, never a traceback.

Exit codes: 0 done, 1 something broke, 2 the arguments or a file are at fault, 130 interrupted.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from everypair.experiments.errors import UserError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

__all__ = ["main"]

# What the commands load, by the name that is imported. Anything else that is missing is a bug.
_EXTRA = (
    *("jinja2", "matplotlib", "optuna", "pandas", "PIL", "pooch", "pyarrow", "rich", "sklearn"),
    *("torch", "typer"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows the name of the program; by default what the shell gave.

    Examples
    --------
    >>> main(["--version"])
    everypair ...
    0
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _insisting():
            from everypair.experiments.commands import app

            code = app(given or ["--help"], prog_name="everypair", standalone_mode=False)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except KeyboardInterrupt:
        return _say("interrupted.", 130)
    except Exception as error:
        if "--debug" in given:
            raise
        return _explain(error)
    # What typer makes of Ctrl-C; commands that have said more about it leave by SystemExit.
    return _say("interrupted.", 130) if code == 130 else code or 0


@contextmanager
def _insisting() -> Iterator[None]:
    """Let a Ctrl-C count that arrives where Python can only ignore exceptions, as in `__del__`."""
    before = sys.unraisablehook

    def again(ignored: UnraisableHookArgs) -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            threading.Timer(0.05, _thread.interrupt_main).start()
        else:
            before(ignored)

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


def _explain(error: Exception) -> int:
    if isinstance(error, UserError):
        return _say(str(error), 2)
    if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] in _EXTRA:
        name = str(error.name).partition(".")[0]
        return _say(f"needs {name}. Install it with: pip install 'everypair[experiments]'", 2)
    if hasattr(error, "format_message"):  # typer's mistakes of the command line have no public base
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "everypair"
        return _say(f"{error.format_message().rstrip('.')}. See: {command} --help", 2)
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return _say(f"{what} (everypair --debug ... shows where)", 1)


def _say(line: str, code: int) -> int:
    sys.stderr.write(f"everypair: {' '.join(line.split())}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
