"""What roles say to each other and to the tool: placeholders filled, a tool's answer put in words, code found in text.

Refuses to expand what was filled in, and to show what changes from run to run (times, file listings).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable

from mappa_core.teams import PLACEHOLDER
from mappa_core.types import Execution, ExecutionStatus

NOTHING = "(nothing)"
"""Stands for the text of a role that did not act, and for the answer of a tool that did not run."""
NO_OUTPUT = "(no output)"
STDERR_LINES = 5
"""Of the words of an error, the last lines are shown: they name it."""
_ENDINGS: dict[ExecutionStatus, str] = {
    "wall_time": "(timed out)",
    "cpu_time": "(timed out)",
    "memory": "(out of memory)",
    "output": "(stopped: too much output)",
    "signal": "(killed)",
}
_FENCE = re.compile(r"[ \t]*(?P<ticks>`{3,})(?P<language>[^`]*)")
_PYTHON = {"python", "python3", "py"}


def fill(prompt: str, told: Callable[[str], str]) -> str:
    """`prompt` with each placeholder replaced by what `told` says of its name, in one pass: never expanded again."""
    return PLACEHOLDER.sub(lambda match: told(match[1]), prompt)


def tool_answer(execution: Execution) -> str:
    """What a model is told of an execution: what it printed, and where it failed, the error or how it ended."""
    printed = [execution.stdout.rstrip()] if execution.stdout.strip() else []
    match execution.status:
        case "ok":
            return "\n".join(printed or [NO_OUTPUT])
        case "error":
            return "\n".join([*printed, _error(execution)])
        case status:
            return "\n".join([*printed, _ENDINGS[status]])


def _error(execution: Execution) -> str:
    """The words of an error without the traceback's frames (indented lines); its exit code where it left no words."""
    words: list[str] = []
    for line in execution.stderr.splitlines():
        if line.startswith("  "):
            words.clear()
        elif line.strip():
            words.append(line.rstrip())
    return "\n".join(words[-STDERR_LINES:]) or f"(exit code {execution.exit_code})"


def python_code(spoken: str) -> str | None:
    """The closed ```python (or py, python3) blocks of `spoken`, joined in order as one program; None if there is none.

    Fences stand on lines of their own, as in CommonMark: an unclosed block is left out, so is one in a longer fence.
    """
    blocks: list[str] = []
    lines: list[str] = []
    fence, language = "", ""
    for line in spoken.replace("\r\n", "\n").split("\n"):
        found = _FENCE.fullmatch(line)
        if not fence:
            if found:
                fence, language, lines = found["ticks"], found["language"].strip().lower(), []
        elif found and not found["language"].strip() and len(found["ticks"]) >= len(fence):
            if language in _PYTHON:
                blocks.append(textwrap.dedent("\n".join(lines)))
            fence = ""
        else:
            lines.append(line)
    return "\n".join(blocks) + "\n" if any(block.strip() for block in blocks) else None
