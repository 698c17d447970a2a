"""Runs agents' code on this machine, in namespaces made by bubblewrap. Code is hostile: it never runs bare.

A fresh process per execution with its own view of the file system (interpreter, libraries, a sized /workspace and /tmp
that vanish with it), no network, a cleared environment, a seccomp filter and limits. As root it gets a user of its own
per slot and a control group; a user without these powers gets the weaker level that `check` names. Where no namespace
can be made it refuses with SandboxError: there is no unprotected way to run code.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from mappa_core.sandbox import launch, seccomp, workspace
from mappa_core.sandbox.excerpt import Excerpt
from mappa_core.sandbox.launch import SandboxError
from mappa_core.sandbox.slots import Hits, Slot, slot
from mappa_core.types import Execution, ExecutionStatus

OUTPUT_BYTES_MAX = 16 << 20
"""A program that writes more is killed: status `output`."""
_START_S, _END_S = 60.0, 10.0
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


class _Started(NamedTuple):
    """A sandbox that waits for "g"."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    workspace: int
    """Directory descriptor: it outlives the sandbox."""
    init: int
    """Process descriptor of the first process in there: when it is dead, all are."""


def run_code(code: str, path: Path, limits: Limits) -> Execution:
    """Runs Python source as a fresh program on the files of the workspace `path`, and writes back what it did to them.

    Whatever the code does is an Execution: a syntax error, a crash, a limit. SandboxError: the sandbox did not start.
    Blocks; may be called from several threads, each with its own workspace.
    """
    with slot() as mine, ExitStack() as stack:
        host = _open(path)
        stack.callback(os.close, host)
        before = _stock(host, limits, path)
        sandbox = _start(_encode(code), limits, mine, stack)
        workspace.copy(host, sandbox.workspace, tuple(f.path for f in before), mine.uid)
        out, err = Excerpt(limits.output_chars), Excerpt(limits.output_chars)
        hits = mine.hits()
        end = _watch(sandbox, out, err, limits.wall_time_s)
        status = _status(end, mine.hits().since(hits), limits)
        try:
            after = workspace.files(sandbox.workspace, limits.disk_mb << 20)
        except workspace.TooMuchError:
            # Hard links, holes or crowds: nothing of it is taken over.
            status, after = "disk", before
        workspace.hand_back(sandbox.workspace, host, before, after)
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
            return Isolation("weak", "not root: code runs as this user, as nobody in a user namespace")
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


def _start(source: bytes, limits: Limits, mine: Slot, stack: ExitStack) -> _Started:
    """A sandbox with this program, in its control group, waiting. `stack` ends it, whatever happens."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stack.callback(control.close)
    info, info_theirs = os.pipe2(os.O_CLOEXEC)
    stack.callback(os.close, info)
    program, filter_fd = _memory_file(source), _memory_file(seccomp.program())
    numbers = (-1 if mine.uid is None else mine.uid, limits.cpu_time_s, limits.memory_mb, limits.disk_mb)
    # Without a user of its own the first process counts too.
    inside = [str(n) for n in (theirs.fileno(), *numbers, limits.processes + (mine.uid is None))]
    try:
        arguments = launch.command(limits.disk_mb, mine.uid is not None, program, filter_fd, info_theirs, inside)
        process = launch.spawn(arguments, (theirs.fileno(), program, filter_fd, info_theirs))
    finally:
        theirs.close()
        for handle in (program, filter_fd, info_theirs):
            os.close(handle)
    stack.callback(_bury, process)
    first = _first_process(info, process)
    init = os.pidfd_open(first)
    stack.callback(os.close, init)
    stack.callback(_kill, init)
    # Joining a group is 5-10 ms of the kernel's own waiting; meanwhile the sandbox mounts and starts the interpreter.
    mine.hold(first, limits.memory_mb, limits.processes + 1)
    directory = _meet(control, process)
    stack.callback(os.close, directory)
    return _Started(process, control, directory, init)


def _first_process(info: int, process: subprocess.Popen[bytes]) -> int:
    """What bubblewrap says of the first process in the sandbox: its id as seen from here."""
    said = b""
    while not said.rstrip().endswith(b"}"):
        more = os.read(info, 4096)
        if not more:
            raise _no_start(process)
        said += more
    return json.loads(said)["child-pid"]


def _meet(control: socket.socket, process: subprocess.Popen[bytes]) -> int:
    """The workspace's directory, a descriptor that the first lines hand out when they are ready."""
    control.settimeout(_START_S)
    try:
        _, ancillary, _, _ = control.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    except TimeoutError as error:
        raise SandboxError(f"the sandbox did not start in {_START_S:.0f} s: is the machine overloaded?") from error
    for _, kind, data in ancillary:
        if kind == socket.SCM_RIGHTS:
            return int.from_bytes(data[:4], sys.byteorder)
    raise _no_start(process)


def _no_start(process: subprocess.Popen[bytes]) -> SandboxError:
    _, said = process.communicate(timeout=_END_S)
    last = said.decode("utf-8", "replace").strip().rpartition("\n")[2] or f"exit code {process.returncode}"
    return SandboxError(f"the sandbox did not start ({last}): allow user namespaces, or run as root with CAP_SYS_ADMIN")


def _watch(sandbox: _Started, out: Excerpt, err: Excerpt, wall_time_s: float) -> _End:
    """Lets the program go and drains its output until the last process is dead, by itself or by a limit."""
    process = sandbox.process
    assert process.stdout is not None
    assert process.stderr is not None
    streams = {process.stdout.fileno(): out, process.stderr.fileno(): err}
    outer = os.pidfd_open(process.pid)
    open_ends = {*streams, outer}
    poll = select.poll()
    for handle in open_ends:
        poll.register(handle, select.POLLIN)
    sandbox.control.send(b"g")
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
            _kill(sandbox.init)
            deadline = time.monotonic() + _END_S
        elif killed is not None and time.monotonic() >= deadline:
            raise SandboxError(f"a sandbox did not die within {_END_S:.0f} s of being killed: see this machine's log")
    os.close(outer)
    return _end(sandbox, killed, time.monotonic() - start)


def _end(sandbox: _Started, killed: ExecutionStatus | None, seconds: float) -> _End:
    """What the first process said of the program's end; where it was killed with it, what bubblewrap saw."""
    code = sandbox.process.wait()
    sandbox.control.setblocking(False)
    try:
        ended, cpu_ms, word = sandbox.control.recv(64).split(b" ")
    except (BlockingIOError, ValueError, ConnectionResetError):
        return _End(128 - code if code > 128 else code, killed, None, 0.0, seconds)
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


def _kill(init: int) -> None:
    """Kills the first process of a sandbox, and so all of them; returns when they are dead."""
    try:
        signal.pidfd_send_signal(init, signal.SIGKILL)
    except ProcessLookupError:
        return
    dead = select.poll()
    dead.register(init, select.POLLIN)
    dead.poll(_END_S * 1000)


def _bury(process: subprocess.Popen[bytes]) -> None:
    """Waits for bubblewrap, after killing it where it still runs, and closes its pipes."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _memory_file(data: bytes) -> int:
    handle = os.memfd_create("program", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(handle), "wb") as file:
        file.write(data)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle
