"""What can go wrong and be mended by whoever runs it."""

from __future__ import annotations


class UserError(Exception):
    """An error whose message is one line that says what is wrong and what to do; the command line shows just that."""
