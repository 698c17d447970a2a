"""Runs agents' code on this machine, in namespaces made by bubblewrap. Code is hostile: it never runs bare.

A fresh process per execution, forked in a warm sandbox, with its own view of the file system (interpreter, libraries, a
sized /workspace and /tmp that vanish with it), no network, a cleared environment, a filter of system calls and limits.
As root it gets a user of its own per slot and a control group; a user without these powers gets the weaker level that
`check` names. Where no namespace can be made it refuses with SandboxError: there is no unprotected way to run code.
"""

from __future__ import annotations

import os
import select
import signal
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from mappa_core.sandbox import workspace
from mappa_core.sandbox.excerpt import Excerpt
from mappa_core.sandbox.launch import SandboxError
from mappa_core.sandbox.member import Numbers, Session, kill
from mappa_core.sandbox.slots import Hits, Slot, slot
from mappa_core.types import Execution, ExecutionStatus

OUTPUT_BYTES_MAX = 16 << 20
"""A program that writes more is killed: status `output`."""
_END_S = 10.0
_CAUSES: dict[bytes, ExecutionStatus] = {b"memory": "memory", b"disk": "disk", b"processes": "processes"}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one execution may use; each limit ends in its own `Execution.status`."""

    wall_time_s: float
    cpu_time_s: int
    memory_mb: int
    disk_mb: int
    """Of /workspace, and again of /tmp."""
    processes: int
    """Processes and threads together."""
    output_chars: int
    """Kept of each stream, head and tail together."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """What `check` found. full: own user and control group; weak: without one of them; none: code can't be run."""

    level: Literal["full", "weak", "none"]
    why: str


class _End(NamedTuple):
    """How a program ended: exit code, or minus the signal; what we killed it for; its own word on why."""

    code: int
    killed: ExecutionStatus | None
    cause: ExecutionStatus | None
    cpu_s: float
    seconds: float


def run_code(code: str, path: Path, limits: Limits, preload: tuple[str, ...] = ()) -> Execution:
    """Runs Python source as a fresh program on the files of the workspace `path`, and writes back what it did to them.

    Whatever the code does is an Execution: a syntax error, a crash, a limit. SandboxError: the sandbox did not start.
    `preload`: modules that the sandbox has imported before, which makes programs that want them start at once.
    Blocks; may be called from several threads, each with its own workspace.
    """
    with slot() as mine, ExitStack() as stack:
        host = _open(path)
        stack.callback(os.close, host)
        before = _stock(host, limits, path)
        session = _begin(mine, code, limits, preload, stack)
        workspace.copy(host, session.workspace, tuple(f.path for f in before), mine.uid)
        out, err = Excerpt(limits.output_chars), Excerpt(limits.output_chars)
        hits = mine.hits()
        end = _watch(session, out, err, limits.wall_time_s)
        status = _status(end, mine.hits().since(hits), limits)
        try:
            after = workspace.files(session.workspace, limits.disk_mb << 20)
        except workspace.TooMuchError:
            # Hard links, holes or crowds: nothing of it is taken over.
            status, after = "disk", before
        workspace.hand_back(session.workspace, host, before, after)
    return Execution(
        status=status,
        exit_code=end.code if end.code >= 0 else None,
        signal=-end.code if end.code < 0 else None,
        stdout=out.text(),
        stderr=err.text(),
        files=workspace.changes(before, after),
        seconds=end.seconds,
    )


def check() -> Isolation:
    """Whether code can be run here, and how well it is held: one execution, well under a second."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            execution = run_code("print(6 * 7)", Path(directory), Limits(30.0, 10, 128, 8, 8, 200))
        except SandboxError as error:
            return Isolation("none", str(error))
    if execution.stdout != "42\n":
        return Isolation("none", f"a trivial program ended as {execution.status}: {execution.stderr.strip()[-200:]}")
    with slot() as mine:
        if mine.uid is None:
            return Isolation("weak", "not root: code runs as this user, without powers, in a user namespace")
        if mine.group is None:
            return Isolation("weak", "no control group can be made here: the memory limit is per process")
    return Isolation("full", "own user, namespaces, seccomp filter, control group")


def _encode(code: str) -> bytes:
    """Source as bytes. What is not UTF-8 stays that: Python then says so."""
    try:
        return code.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return code.encode("utf-8", "surrogatepass")


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxError(f"workspace {path}: {error.strerror}; make the directory first") from error


def _stock(host: int, limits: Limits, path: Path) -> tuple[workspace.File, ...]:
    try:
        return workspace.files(host, limits.disk_mb << 20)
    except workspace.TooMuchError as error:
        most = f"{limits.disk_mb} MiB or {workspace.MAX_FILES} files"
        raise SandboxError(f"workspace {path} holds more than {most}: raise sandbox.disk_mb or hand in less") from error


def _begin(mine: Slot, code: str, limits: Limits, preload: tuple[str, ...], stack: ExitStack) -> Session:
    """A session with this program. `stack` ends it, whatever happens."""
    # Without a user of its own the limit of processes counts the sandbox's two as well.
    processes = limits.processes + (2 if mine.uid is None else 0)
    numbers = Numbers(limits.cpu_time_s, limits.memory_mb, limits.disk_mb, processes)
    session = mine.session(_encode(code), numbers, preload)
    stack.callback(session.control.close)
    for handle in (session.out, session.err, session.workspace, session.init):
        stack.callback(os.close, handle)
    stack.callback(kill, session.init)
    return session


def _watch(session: Session, out: Excerpt, err: Excerpt, wall_time_s: float) -> _End:
    """Lets the program go and drains its output until the last process is dead, by itself or by a limit."""
    streams = {session.out: out, session.err: err}
    open_ends = {*streams, session.init}
    poll = select.poll()
    for handle in open_ends:
        poll.register(handle, select.POLLIN)
    session.control.send(b"g")
    start = time.monotonic()
    deadline, killed = start + wall_time_s, None
    while open_ends:
        for handle, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000 + 1):
            data = os.read(handle, 1 << 16) if handle in streams else b""
            if handle in streams:
                streams[handle].feed(data)
            if not data:
                poll.unregister(handle)
                open_ends.remove(handle)
        flood = out.bytes + err.bytes > OUTPUT_BYTES_MAX
        if killed is None and (flood or time.monotonic() >= deadline) and open_ends:
            killed = "output" if flood else "wall_time"
            kill(session.init)
            deadline = time.monotonic() + _END_S
        elif killed is not None and time.monotonic() >= deadline:
            raise SandboxError(f"a sandbox did not die within {_END_S:.0f} s of being killed: see this machine's log")
    return _end(session, killed, time.monotonic() - start)


def _end(session: Session, killed: ExecutionStatus | None, seconds: float) -> _End:
    """What the first process said of the program's end; without a word it was killed, by us or for lack of memory."""
    session.control.setblocking(False)
    try:
        ended, cpu_ms, word = session.control.recv(64).split(b" ")
    except (BlockingIOError, ValueError, ConnectionResetError):
        return _End(-signal.SIGKILL, killed, None, 0.0, seconds)
    return _End(int(ended), killed, _CAUSES.get(word), int(cpu_ms) / 1000, seconds)


def _status(end: _End, hits: Hits, limits: Limits) -> ExecutionStatus:
    if end.killed:
        return end.killed
    if end.code == 0:
        return "ok"
    if hits.memory:
        return "memory"
    # A program that ignores SIGXCPU is killed a second later.
    if end.code == -signal.SIGXCPU or (end.code == -signal.SIGKILL and end.cpu_s >= limits.cpu_time_s):
        return "cpu_time"
    if end.cause:
        # Its word may be a lie; that only mislabels its own failure.
        return end.cause
    if hits.processes:
        return "processes"
    return "signal" if end.code < 0 else "error"
