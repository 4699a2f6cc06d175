"""The command ``everypair``: every mistake is one line and a number, never a traceback.

Exit codes: 0 done, 1 something broke, 2 the arguments or a file are at fault, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from everypair.experiments.errors import UserError

__all__ = ["main"]

# What the commands load, by the name that is imported. Anything else that is missing is a bug.
_EXTRA = ("matplotlib", "optuna", "pandas", "PIL", "pyarrow", "rich", "sklearn", "torch", "typer")


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
        from everypair.experiments.commands import app

        app(given, prog_name="everypair")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except KeyboardInterrupt:
        return _say("interrupted.", 130)
    except Exception as error:
        if "--debug" in given:
            raise
        return _explain(error)
    return 0


def _explain(error: Exception) -> int:
    if isinstance(error, UserError):
        return _say(str(error), 2)
    if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] in _EXTRA:
        name = str(error.name).partition(".")[0]
        return _say(f"needs {name}. Install it with: pip install 'everypair[experiments]'", 2)
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return _say(f"{what} (everypair --debug ... shows where)", 1)


def _say(line: str, code: int) -> int:
    sys.stderr.write(f"everypair: {' '.join(line.split())}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
