"""Slots: a user id, a control group and a warm sandbox that one execution at a time uses, kept for the next one.

They are this process's own: no two processes of a machine share a user or a group. Made when needed, removed at exit,
swept by a later process where this one was killed.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mappa_core.sandbox import cgroup, launch
from mappa_core.sandbox.cgroup import Hits
from mappa_core.sandbox.member import BrokenError, Member, Numbers, Session

_PREFIX = "mappa"
_PER_PROCESS = 256
_FIRST_UID = 1_000_000_000
"""Above what systems give to people and containers; process ids are below 2^22, so ids stay below 2^31."""
_IMPORT_MB, _IMPORT_PROCESSES = 2048, 64
"""What a sandbox may use while it starts: numerical libraries start threads when they are imported."""


class Slot:
    """`uid` None: code runs as the caller's, powerless, in a user namespace. `group` None: no common limits."""

    def __init__(self, uid: int | None, group: cgroup.Group | None) -> None:
        self.uid = uid
        self.group = group
        self._member: Member | None = None
        self._idle_mb = 0

    def session(self, source: bytes, limits: Numbers, preload: tuple[str, ...]) -> Session:
        """A session in the slot's sandbox: the one that is there, or a new one where it died or has other imports."""
        if self._member is not None and self._member.preload != preload:
            self.close()
        if self._member is not None:
            try:
                return self._session(self._member, source, limits)
            except BrokenError:
                self.close()
        try:
            return self._session(self._started(preload), source, limits)
        except BrokenError as error:
            why = self.close() or "see this machine's log"
            raise launch.SandboxError(f"a new sandbox died at once: {why}") from error

    def hits(self) -> Hits:
        """The group's counters."""
        return self.group.hits() if self.group else Hits(0, 0)

    def close(self) -> str:
        """Ends the slot's sandbox; the last line that it said of itself."""
        member, self._member = self._member, None
        return member.close() if member is not None else ""

    def _session(self, member: Member, source: bytes, limits: Numbers) -> Session:
        if self.group:
            # What the sandbox has imported is not the program's; its two first processes neither.
            self.group.limit(limits.memory_mb + self._idle_mb, limits.processes + 2)
        return member.session(source, limits)

    def _started(self, preload: tuple[str, ...]) -> Member:
        if self.group:
            self.group.limit(_IMPORT_MB, _IMPORT_PROCESSES)
        self._member = Member(self.uid, preload, self.group.join if self.group else lambda _: None)
        self._idle_mb = self.group.used_mb() if self.group else 0
        return self._member


@dataclass(slots=True)
class _Pool:
    """The slots of process `pid`: a forked child starts with none."""

    pid: int
    made: list[Slot] = field(default_factory=list)
    free: list[Slot] = field(default_factory=list)


_lock = threading.Lock()
_pool = _Pool(0)


@contextmanager
def slot() -> Iterator[Slot]:
    """A slot that no other thread has."""
    mine = _take()
    try:
        yield mine
    finally:
        with _lock:
            _pool.free.append(mine)


def _take() -> Slot:
    global _pool
    with _lock:
        if _pool.pid != os.getpid():
            _pool = _Pool(os.getpid())
            cgroup.sweep(_PREFIX)
            atexit.register(_remove_all, _pool)
        if _pool.free:
            return _pool.free.pop()
        number = len(_pool.made)
        if number >= _PER_PROCESS:
            raise launch.SandboxError(f"{_PER_PROCESS} executions at once in one process: lower sandbox.workers")
        uid = _FIRST_UID + _pool.pid * _PER_PROCESS + number if launch.privileged() else None
        made = Slot(uid, cgroup.make(f"{_PREFIX}-{_pool.pid}-{number}"))
        _pool.made.append(made)
        return made


def _remove_all(pool: _Pool) -> None:
    if pool.pid == os.getpid():
        for made in pool.made:
            made.close()
            if made.group:
                made.group.remove()
