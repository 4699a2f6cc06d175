"""Errors that the user can correct: the command line prints one line and exits with code 2."""

from __future__ import annotations


class UserError(ValueError):
    """The message names the argument or file, the rule, what was found, and what to do."""
