"""A control group per sandbox slot, below the group this process is in: memory and processes of a whole execution.

Version 1 (a hierarchy per controller) and version 2. Where no group can be made the answer is None, never an error:
the sandbox then runs at a weaker level, and says so.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Hits:
    """How often a group's limits were met since it was made."""

    memory: int
    processes: int

    def since(self, earlier: Hits) -> Hits:
        """What was added to an earlier reading."""
        return Hits(self.memory - earlier.memory, self.processes - earlier.processes)


@dataclass(frozen=True, slots=True)
class Group:
    """Directories of one slot: the same one twice in version 2."""

    memory: Path
    pids: Path

    def limit(self, memory_mb: int, processes: int) -> None:
        """Sets both limits."""
        size = str(memory_mb << 20)
        if self.memory == self.pids:
            (self.memory / "memory.max").write_text(size)
            _write_if_there(self.memory / "memory.swap.max", "0")
        else:
            # Raising and lowering must not pass each other: the sum with swap is never below the memory limit.
            _write_if_there(self.memory / "memory.memsw.limit_in_bytes", "-1")
            (self.memory / "memory.limit_in_bytes").write_text(size)
            _write_if_there(self.memory / "memory.memsw.limit_in_bytes", size)
        (self.pids / "pids.max").write_text(str(processes))

    def join(self, pid: int) -> None:
        """Moves a process in, with what it will start later."""
        for directory in {self.memory, self.pids}:
            (directory / "cgroup.procs").write_text(str(pid))

    def used_mb(self) -> int:
        """Memory in use, in MiB, rounded up."""
        name = "memory.current" if self.memory == self.pids else "memory.usage_in_bytes"
        return -(-int((self.memory / name).read_text()) >> 20)

    def hits(self) -> Hits:
        """Counters for `Hits`; compare two readings."""
        name = "memory.events" if self.memory == self.pids else "memory.oom_control"
        killed = re.search(r"^oom_kill (\d+)", (self.memory / name).read_text(), re.MULTILINE)
        refused = re.search(r"^max (\d+)", (self.pids / "pids.events").read_text(), re.MULTILINE)
        return Hits(int(killed[1]) if killed else 0, int(refused[1]) if refused else 0)

    def remove(self) -> None:
        """Removes the empty directories."""
        for directory in {self.memory, self.pids}:
            _remove(directory)


def make(name: str) -> Group | None:
    """A new group `name`, or None where this process may not make one that limits memory and processes."""
    own = _own_groups(Path("/proc/self/cgroup").read_text())
    if "memory" in own and "pids" in own:
        return _try([_ROOT / "memory" / own["memory"]], [_ROOT / "pids" / own["pids"]], name)
    if "" in own and (_ROOT / "cgroup.controllers").exists():
        # Version 2 has no processes beside groups: where our own group can't have children, a sibling can.
        here = _ROOT / own[""]
        return _try([here, here.parent], None, name)
    return None


def sweep(prefix: str) -> None:
    """Removes groups called PREFIX-PID-SLOT whose process PID is gone (it was killed before it could)."""
    for controller, path in _own_groups(Path("/proc/self/cgroup").read_text()).items():
        for parent in {_ROOT / controller / path, (_ROOT / controller / path).parent}:
            for left in parent.glob(f"{prefix}-*-*"):
                pid = left.name.removeprefix(f"{prefix}-").partition("-")[0]
                if not Path("/proc", pid).exists():
                    _remove(left)


def _own_groups(text: str) -> dict[str, str]:
    """Controller -> path below its hierarchy, of /proc/self/cgroup; version 2 is the controller ""."""
    own = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            own[controller] = path.lstrip("/")
    return own


def _try(memory: list[Path], pids: list[Path] | None, name: str) -> Group | None:
    for parent in memory:
        group = Group(parent / name, (pids[0] if pids else parent) / name)
        try:
            group.memory.mkdir(exist_ok=True)
            group.pids.mkdir(exist_ok=True)
            group.limit(64, 8)
            group.hits()
        except OSError:
            group.remove()
            continue
        return group
    return None


def _write_if_there(path: Path, text: str) -> None:
    if path.exists():
        path.write_text(text)


def _remove(directory: Path) -> None:
    with contextlib.suppress(OSError):  # already gone, or a process is just leaving it: the next sweep removes it
        directory.rmdir()
