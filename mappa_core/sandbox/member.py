"""A warm sandbox: bubblewrap, and in it an interpreter that has a child ready for the next execution.

Starting one costs what a fresh interpreter costs, with what it is to import; an execution in it a fork. One at a time,
each in a fresh process with namespaces of its own. Ended by `close`, by its own death, or by the death of this process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from mappa_core.sandbox import launch, seccomp
from mappa_core.sandbox.launch import SandboxError

_START_S, _END_S = 60.0, 10.0


class BrokenError(Exception):
    """The sandbox is gone; nothing of a program has run."""


class Numbers(NamedTuple):
    """What the first lines are told of an execution's limits."""

    cpu_time_s: int
    memory_mb: int
    disk_mb: int
    processes: int


class Session(NamedTuple):
    """A sandbox that waits for "g" to run its program. Descriptors are the caller's to close."""

    control: socket.socket
    out: int
    err: int
    workspace: int
    """Directory: it outlives the execution."""
    init: int
    """Process descriptor of the first process of the execution: when it is dead, all are."""


class Member:
    """One warm sandbox."""

    def __init__(self, uid: int | None, preload: tuple[str, ...], hold: Callable[[int], None]) -> None:
        """Starts it; SandboxError where it can't. `hold`: puts its process into a control group."""
        self.preload = preload
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        info, info_theirs = os.pipe2(os.O_CLOEXEC)
        lines = memory_file(seccomp.program())
        passed = (theirs.fileno(), lines, info_theirs)
        try:
            inside = [str(n) for n in (*passed[:2], -1 if uid is None else uid)]
            # A sandbox dies with the thread that started it: one that stays.
            arguments = launch.command(uid is not None, info_theirs, [*inside, *preload])
            self._process = _spawner().submit(launch.spawn, arguments, passed).result()
        except BaseException:
            self._control.close()
            os.close(info)
            raise
        finally:
            theirs.close()
            os.close(lines)
            os.close(info_theirs)
        self._first: int | None = None
        try:
            first = _first_process(info, self._process)
            self._first = os.pidfd_open(first)
            hold(first)
            self._await_ready()
        except BaseException:
            self.close()
            raise
        finally:
            os.close(info)

    def session(self, source: bytes, numbers: Numbers) -> Session:
        """A session with this program; BrokenError where the sandbox died, SandboxError where it can't make one."""
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        out, out_theirs = os.pipe2(os.O_CLOEXEC)
        err, err_theirs = os.pipe2(os.O_CLOEXEC)
        program = memory_file(source)
        passed = [theirs.fileno(), out_theirs, err_theirs, program]
        try:
            socket.send_fds(self._control, [" ".join(map(str, numbers)).encode()], passed)
            theirs.close()
            workspace, init = self._meet(control)
        except BaseException as error:
            control.close()
            os.close(out)
            os.close(err)
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise BrokenError from error
            raise
        finally:
            theirs.close()
            for handle in (out_theirs, err_theirs, program):
                os.close(handle)
        return Session(control, out, err, workspace, init)

    def close(self) -> str:
        """Ends it; returns when its last process is dead, with the last line that it said of itself."""
        self._control.close()
        if self._first is not None:
            kill(self._first)
            os.close(self._first)
            self._first = None
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        _, said = self._process.communicate(timeout=_END_S)
        return _last_line(said)

    def _await_ready(self) -> None:
        self._control.settimeout(_START_S)
        try:
            said = self._control.recv(16)
        except TimeoutError as error:
            raise SandboxError(f"the sandbox did not start in {_START_S:.0f} s: is the machine overloaded?") from error
        if said != b"ready":
            raise _no_start(self._process)

    def _meet(self, control: socket.socket) -> tuple[int, int]:
        """The workspace's directory and the first process, which come when the execution's namespaces are made."""
        control.settimeout(_START_S)
        try:
            said, handles, _, _ = socket.recv_fds(control, 256, 2, socket.MSG_CMSG_CLOEXEC)
        except TimeoutError as error:
            self.close()
            raise SandboxError(f"no execution began in {_START_S:.0f} s: is the machine overloaded?") from error
        if said.startswith(b"e"):
            raise SandboxError(f"a sandbox could not be made ({said[1:].decode()}): allow namespaces and tmpfs mounts")
        if not said:
            raise BrokenPipeError
        workspace, init = handles
        return workspace, init


_spawners: dict[int, ThreadPoolExecutor] = {}


def _spawner() -> ThreadPoolExecutor:
    """This process's one thread that starts sandboxes; a forked child's is its own."""
    return _spawners.setdefault(os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="sandboxes"))


def _first_process(info: int, process: subprocess.Popen[bytes]) -> int:
    """What bubblewrap says of the first process in the sandbox: its id as seen from here."""
    said = b""
    while not said.rstrip().endswith(b"}"):
        more = os.read(info, 4096)
        if not more:
            raise _no_start(process)
        said += more
    return json.loads(said)["child-pid"]


def _no_start(process: subprocess.Popen[bytes]) -> SandboxError:
    try:
        _, said = process.communicate(timeout=_END_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, said = process.communicate(timeout=_END_S)
    last = _last_line(said) or f"exit code {process.returncode}"
    return SandboxError(f"the sandbox did not start ({last}): allow user namespaces, or run as root with CAP_SYS_ADMIN")


def _last_line(said: bytes) -> str:
    return said.decode("utf-8", "replace").strip().rpartition("\n")[2]


def kill(init: int) -> None:
    """Kills the first process of an execution, and so all of them; returns when they are dead."""
    try:
        signal.pidfd_send_signal(init, signal.SIGKILL)
    except ProcessLookupError:
        return
    dead = select.poll()
    dead.register(init, select.POLLIN)
    dead.poll(_END_S * 1000)


def memory_file(data: bytes) -> int:
    """A descriptor of these bytes, at their beginning."""
    handle = os.memfd_create("program", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(handle), "wb") as file:
        file.write(data)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle
