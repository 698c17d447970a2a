"""Slots: a user id and a control group that one execution at a time uses, kept for the next one.

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

_PREFIX = "mappa"
_PER_PROCESS = 256
_FIRST_UID = 1_000_000_000
"""Above what systems give to people and containers; process ids are below 2^22, so ids stay below 2^31."""


@dataclass(frozen=True, slots=True)
class Slot:
    """`uid` None: no own user, code runs as the caller's, as nobody in a user namespace. `group` None: none here."""

    number: int
    uid: int | None
    group: cgroup.Group | None

    def hold(self, pid: int, memory_mb: int, processes: int) -> None:
        """Puts a process, and what it will start, under the group's limits, where there is one."""
        if self.group:
            self.group.limit(memory_mb, processes)
            self.group.join(pid)

    def hits(self) -> Hits:
        """The group's counters."""
        return self.group.hits() if self.group else Hits(0, 0)


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
        made = Slot(number, uid, cgroup.make(f"{_PREFIX}-{_pool.pid}-{number}"))
        _pool.made.append(made)
        return made


def _remove_all(pool: _Pool) -> None:
    if pool.pid == os.getpid():
        for made in pool.made:
            if made.group:
                made.group.remove()
