"""A process that runs math-verify for another one and is killed when it takes too long.

math-verify's own time limits are signals: they raise in threads, where its caller swallows them and every answer counts
as wrong. Here they are off, and the process is expendable: memory-limited, killed from outside, started again.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import NamedTuple

START_S = 120.0
"""Importing sympy on a busy machine takes its time."""
_MEMORY_BYTES = 2 << 30
_SHOWN = 200


class Comparison(NamedTuple):
    """How both sides were read (None: not at all; the answer also where none was given), and whether they are equal."""

    answer: str | None
    reference: str | None
    equal: bool


class Process:
    """The other process, started at the first question. Threads take turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._read: dict[str, Comparison] = {}

    def ask(self, answer: str | None, reference: str, timeout_s: float) -> Comparison | None:
        """Compares two LaTeX expressions, or reads one; None: no reply within the time or the memory."""
        with self._lock:
            if answer is None and reference in self._read:
                return self._read[reference]
            process = self._running()
            assert process.stdin is not None
            question = json.dumps([answer, reference, math.ceil(timeout_s) + 5])
            process.stdin.write(question.encode() + b"\n")
            process.stdin.flush()
            line = _line(process, timeout_s)
            if line is None:
                self._end()
                return None
            reply = Comparison(*json.loads(line))
            if answer is None:
                self._read[reference] = reply
            return reply

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        if self._owner != os.getpid():
            atexit.register(self._end)
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mappa_core.graders.math_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
        )
        if _line(self._process, START_S) is None:
            self._end()
            raise RuntimeError(f"math-verify did not start within {START_S:.0f} s: run the set-up again")
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _environment() -> dict[str, str]:
    """No secrets, no threads; the same module path as here."""
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    return {
        **keep,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
    }


def _line(process: subprocess.Popen[bytes], timeout_s: float) -> bytes | None:
    """The next line of the process, or None where it ends or does not come in time."""
    assert process.stdout is not None
    handle, data, deadline = process.stdout.fileno(), b"", time.monotonic() + timeout_s
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
        more = os.read(handle, 1 << 16) if ready else b""
        if not more:
            return None
        data += more
    return data


def _serve() -> None:
    """Answers questions, a line each, until there are no more."""
    import logging
    import resource

    from math_verify import LatexExtractionConfig, parse, verify

    logging.disable(logging.WARNING)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    # LaTeX only: the plain-expression reader evaluates its input as Python.
    latex = [LatexExtractionConfig(boxed_match_priority=0)]

    def read(text: str) -> list:
        return parse(f"${text}$", latex, fallback_mode="no_fallback", parsing_timeout=0)  # 0: none

    print("ready", flush=True)
    for line in sys.stdin:
        answer, reference, alarm_s = json.loads(line)
        # The default action of this signal ends the process: nobody's death leaves it computing for ever.
        signal.alarm(alarm_s)
        given, right = read(answer) if answer is not None else [], read(reference)
        equal = bool(given and right) and verify(right, given, timeout_seconds=0)
        reply = Comparison(str(given[0])[:_SHOWN] if given else None, str(right[0])[:_SHOWN] if right else None, equal)
        signal.alarm(0)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    _serve()
