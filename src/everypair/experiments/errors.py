"""Mistakes of the person at the keyboard: one clear line, exit code 2, no traceback."""

from __future__ import annotations

__all__ = ["UserError"]


class UserError(ValueError):
    """Names the argument or file, the rule, what arrived, and what to do."""
