"""The command ``everypair``. Errors are one line on stderr; ``--debug`` shows the traceback.

Exit codes: 0 success, 1 unexpected error, 2 wrong arguments or files, 75 `--minutes` is over,
130 interrupted.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from everypair.experiments._terminal import printable
from everypair.experiments.errors import UserError

# Optional packages that the commands import. If any other module is missing, that is a bug.
_EXTRA = (
    *("jinja2", "matplotlib", "optuna", "pandas", "PIL", "pooch", "pyarrow", "rich", "sklearn"),
    *("sqlalchemy", "torch", "typer"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        The arguments after the program's name; ``sys.argv[1:]`` by default.

    Examples
    --------
    >>> main(["--version"])
    everypair ...
    0
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _keyboard_interrupts_raised():
            from everypair.experiments.commands import app

            code = app(words or ["--help"], prog_name="everypair", standalone_mode=False)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:
        return _fail("interrupted.", 130)
    except Exception as error:
        if "--debug" in words:
            raise
        return _report(error)
    # Typer returns 130 on Ctrl-C. Commands that print a message of their own raise SystemExit.
    return _fail("interrupted.", 130) if code == 130 else code or 0


@contextmanager
def _keyboard_interrupts_raised() -> Iterator[None]:
    """Raise a KeyboardInterrupt again if Python ignored it, as it does in a `__del__` method."""
    previous_hook = sys.unraisablehook

    def hook(ignored: Any) -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            threading.Timer(0.05, _thread.interrupt_main).start()
        else:
            previous_hook(ignored)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook


def _report(error: Exception) -> int:
    """Print one line about an error and return the exit code."""
    if isinstance(error, UserError):
        return _fail(str(error), 2)
    name = str(getattr(error, "name", "")).partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and name in _EXTRA:
        return _fail(f"needs {name}. In a checkout: pip install '.[experiments]'", 2)
    if hasattr(error, "format_message"):  # typer's usage errors have no public base class
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "everypair"
        return _fail(f"{_usage_error(error)}. See: {command} --help", 2)
    hint = "(everypair --debug ... shows the traceback)"
    if isinstance(error, OSError) and error.filename is not None:
        return _fail(f"{error.filename}: {error.strerror} {hint}", 2)
    return _fail(f"{type(error).__name__}: {error} {hint}", 1)


def _usage_error(error: Any) -> str:
    """Return typer's message about an argument, with the value that arrived.

    Typer validates numbers with pydantic, whose messages leave the value out.
    """
    message: str = error.format_message().rstrip(".")
    errors: list[Any] = getattr(error.__cause__, "errors", list)()
    value = repr(errors[0]["input"]) if errors else ""
    return message if value in message else f"{message}; got {value}"


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"everypair: {printable(' '.join(message.split()))}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
