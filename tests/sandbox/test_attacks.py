"""Hostile programs: each ends in its status within its limit, nothing gets out, and the next program is fine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mappa_core.sandbox import Limits, cgroup, run_code
from mappa_core.types import Execution

LIMITS = Limits(wall_time_s=30.0, cpu_time_s=20, memory_mb=128, disk_mb=8, processes=12, output_chars=2000)
SHORT = Limits(wall_time_s=1.5, cpu_time_s=20, memory_mb=128, disk_mb=8, processes=12, output_chars=2000)
PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    """A workspace; after the attack no process of it lives and the next program is fine."""
    here = tmp_path / "workspace"
    here.mkdir()
    yield here
    assert _left_over() == []
    for path in here.iterdir():
        assert path.is_file() or path.is_dir()
    (tmp_path / "next").mkdir()
    assert run_code("print(1)", tmp_path / "next", LIMITS) == Execution("ok", 0, None, "1\n", "")


def _left_over() -> list[str]:
    """Processes of this process's slots that still live."""
    first = 1_000_000_000 + os.getpid() * 256
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            owner, state = path.stat().st_uid, (path / "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if first <= owner < first + 256 and state != "Z":
            found.append(path.name)
    return found


def within(seconds: float, code: str, workspace: Path, limits: Limits = LIMITS) -> Execution:
    start = time.monotonic()
    execution = run_code(code, workspace, limits)
    assert time.monotonic() - start < seconds, f"took {time.monotonic() - start:.1f} s"
    return execution


def test_no_network(workspace: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.2)
    hidden = socket.socket(socket.AF_UNIX)
    hidden.bind(f"\0mappa-test-{os.getpid()}")
    hidden.listen()
    code = f"""
import socket
def attempt(name, act):
    try:
        act()
        print(name, "got out")
    except OSError as error:
        print(name, error.errno)
attempt("tcp", lambda: socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), 2))
attempt("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("8.8.8.8", 53)))
attempt("dns", lambda: socket.getaddrinfo("example.org", 80))
attempt("unix", lambda: socket.socket(socket.AF_UNIX).connect("\\0mappa-test-{os.getpid()}"))
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM).connect((2, 1)))
attempt("netlink", lambda: socket.socket(16, socket.SOCK_RAW))
attempt("packet", lambda: socket.socket(17, socket.SOCK_RAW))
"""
    with server, hidden:
        execution = within(25, code, workspace)
        with pytest.raises(TimeoutError):
            server.accept()
    assert execution.status == "ok"
    assert "got out" not in execution.stdout
    # The last three are refused by the filter (EAFNOSUPPORT): no network namespace holds them all.
    assert execution.stdout.splitlines()[4:] == ["vsock 97", "netlink 97", "packet 97"]


def test_no_home_repository_or_keys(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAPPA_TEST_API_KEY", "sk-secret")
    secret = workspace.parent / "answers.txt"
    secret.write_text("42")
    places = [
        str(Path.home()),
        str(PROJECT),
        str(secret),
        "/root",
        "/home",
        "/etc/shadow",
        "/etc/passwd",
        "/var",
        "/sys",
    ]
    code = f"""
import os, pathlib
for place in {places!r}:
    if os.path.lexists(place):
        print("there:", place)
for root, _, names in os.walk("/proc"):
    for name in names:
        if name in ("environ", "cmdline"):
            try:
                if "sk-secret" in pathlib.Path(root, name).read_text(errors="replace"):
                    print("secret in", root)
            except OSError:
                pass
print(sorted(int(p) for p in os.listdir("/proc") if p.isdigit()), "sk-secret" in str(os.environ))
print(os.getuid() in (0, {os.getuid()}))
for name in ("/proc/1/root/root", "/proc/1/environ", "/proc/1/cwd"):
    try:
        print("read", name, os.listdir(name) if os.path.isdir(name) else open(name).read())
    except OSError:
        pass
"""
    execution = within(25, code, workspace)
    assert execution.stdout == "[1, 2] False\nFalse\n", execution


def test_nothing_is_writable_but_workspace_and_tmp(workspace: Path) -> None:
    code = """
import os
for place in ("/", "/usr", "/usr/bin", "/opt", "/opt/python", "/opt/site-packages", "/etc", "/dev", "/dev/shm", "/proc",
              "/proc/sys/kernel"):
    try:
        open(os.path.join(place, "x"), "w")
        print("wrote", place)
    except OSError:
        pass
for act in (lambda: os.unlink("/action.py"), lambda: os.unlink("/opt/python/bin/python3"),
            lambda: os.chmod("/opt", 0o777),
            lambda: os.setuid(0), lambda: os.chroot("/tmp"),
            lambda: os.mknod("/tmp/disk", 0o60666, os.makedev(8, 0)),
            lambda: open("/proc/sysrq-trigger", "w"), lambda: os.kill(1, 9)):
    try:
        act()
        print("done", act.__code__.co_firstlineno)
    except OSError:
        pass
open("/tmp/fine", "w"); open("/workspace/fine", "w"); print("end")
"""
    execution = within(25, code, workspace)
    assert execution.stdout == "end\n", execution


def test_no_new_namespace_and_no_tracing(workspace: Path) -> None:
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
child = os.fork()
if not child:
    import time; time.sleep(20)
for name, args in (("unshare", (0x10000000,)), ("unshare", (0x20000,)), ("ptrace", (16, child, 0, 0)),
                   ("ptrace", (16, 1, 0, 0)), ("mount", (b"none", b"/tmp", b"tmpfs", 0, 0)), ("setns", (3, 0))):
    print(name, getattr(libc, name)(*args), ctypes.get_errno())
print("clone", libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0), ctypes.get_errno())
print("clone3", libc.syscall(435, 0, 0), ctypes.get_errno(), "x32", libc.syscall(0x40000000 + 39), ctypes.get_errno())
"""
    execution = within(25, code, workspace)
    calls = ("unshare", "unshare", "ptrace", "ptrace", "mount", "setns", "clone")
    assert execution.stdout.splitlines() == [*(f"{c} -1 1" for c in calls), "clone3 -1 38 x32 -1 1"], execution


def test_fork_bomb(workspace: Path) -> None:
    execution = within(20, "import os\nwhile True: os.fork()", workspace, SHORT)
    assert execution.status in ("processes", "wall_time")


def test_fork_in_one_process_meets_the_limit(workspace: Path) -> None:
    code = "import os, time\nn = 0\nwhile True:\n    if not os.fork(): time.sleep(60)\n    n += 1; print(n)"
    execution = within(20, code, workspace)
    assert execution.status == "processes"
    assert execution.stdout.split()[-1] == "11", "12 processes, its own among them"


def test_thread_bomb(workspace: Path) -> None:
    code = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    assert within(20, code, workspace).status in ("processes", "memory")


def test_memory_bomb(workspace: Path) -> None:
    execution = within(20, "x = []\nwhile True: x.append(bytearray(1 << 20))", workspace)
    assert execution.status == "memory"
    assert within(20, "x = bytearray(10 ** 11)", workspace).status == "memory"


def test_memory_bomb_of_many_processes(workspace: Path) -> None:
    code = """
import os, time
for _ in range(8):
    if not os.fork():
        x = bytearray(60 << 20); time.sleep(60)
while True:
    os.wait()
    raise SystemExit(1)
"""
    assert within(20, code, workspace, replace(LIMITS, wall_time_s=8.0)).status == "memory"


def test_memory_bomb_in_shared_memory(workspace: Path) -> None:
    code = "import mmap, time\nx = mmap.mmap(-1, 300 << 20)\nfor i in range(0, 300 << 20, 4096): x[i] = 1"
    assert within(20, code, workspace).status == "memory"


@pytest.mark.parametrize("place", ["/workspace", "/tmp"])  # noqa: S108
def test_disk_fill(workspace: Path, place: str) -> None:
    code = f"n = 0\nwhile True:\n    n += 1\n    with open(f'{place}/{{n}}', 'wb') as f: f.write(bytes(1 << 20))"
    execution = within(20, code, workspace)
    assert execution.status == "disk"
    assert sum(p.stat().st_size for p in workspace.iterdir()) <= 8 << 20


def test_disk_fill_by_deleted_files(workspace: Path) -> None:
    code = """
import os
kept = []
while True:
    f = open("x", "wb"); os.unlink("x"); f.write(bytes(1 << 20)); f.flush(); kept.append(f)
"""
    assert within(20, code, workspace).status == "disk"


def test_many_files(workspace: Path) -> None:
    execution = within(25, "for i in range(10000): open(str(i), 'w')", workspace)
    assert (execution.status, execution.files, list(workspace.iterdir())) == ("disk", (), [])


@pytest.mark.parametrize(
    "code",
    [
        "for i in range(4): open(f'hole{i}', 'wb').truncate(8 << 20)",
        "import os\nopen('x', 'wb').write(bytes(1 << 20))\nfor i in range(100): os.link('x', str(i))",
        "import os\nfor i in range(40): os.mkdir('d'); os.chdir('d')\nopen('x', 'w')",
    ],
)
def test_what_would_grow_when_copied_is_not_handed_over(workspace: Path, code: str) -> None:
    (workspace / "before").write_text("kept")
    execution = within(20, code, workspace)
    assert (execution.status, execution.files) == ("disk", ())
    assert [p.name for p in workspace.iterdir()] == ["before"]


def test_a_sparse_file_above_the_limit(workspace: Path) -> None:
    assert within(20, "open('hole', 'wb').truncate(2 << 30)", workspace).status == "disk"


def test_output_flood(workspace: Path) -> None:
    execution = within(20, "while True: print('x' * 10000)", workspace)
    assert execution.status == "output"
    assert len(execution.stdout) < 2100
    assert "characters left out" in execution.stdout


def test_output_flood_of_both_streams_from_children(workspace: Path) -> None:
    code = (
        "import os, sys\nos.fork(); os.fork()\nwhile True: sys.stdout.write('x' * 9999); sys.stderr.write('y' * 9999)"
    )
    execution = within(20, code, workspace)
    assert execution.status == "output"
    assert max(len(execution.stdout), len(execution.stderr)) < 2100


def test_cpu_spin(workspace: Path) -> None:
    limits = Limits(30.0, 1, 128, 8, 12, 2000)
    assert within(25, "while True: pass", workspace, limits).status == "cpu_time"
    ignoring = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    assert within(25, ignoring, workspace, limits).status == "cpu_time"


def test_sleep_for_ever(workspace: Path) -> None:
    code = """
import signal, time
for s in range(1, 65):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
print("in")
time.sleep(1e6)
"""
    execution = within(10, code, workspace, SHORT)
    assert (execution.status, execution.exit_code, execution.stdout) == ("wall_time", None, "in\n")


def test_daemon_of_a_double_fork_is_dead_when_the_call_returns(workspace: Path) -> None:
    code = """
import os, time
if not os.fork():
    os.setsid()
    if not os.fork():
        for fd in range(3): os.close(fd)
        while True:
            open("/workspace/alive", "w").write("x"); time.sleep(0.01)
    os._exit(0)
time.sleep(0.2)
print("gone")
"""
    execution = within(20, code, workspace)
    assert (execution.status, execution.stdout) == ("ok", "gone\n")
    assert _left_over() == []


def test_links_and_pipes_are_not_handed_over(workspace: Path) -> None:
    code = """
import os
os.symlink("/etc/passwd", "link"); os.symlink("/", "root"); os.mkfifo("pipe"); os.mkdir("d"); os.symlink("..", "d/up")
import socket; socket.socket(socket.AF_UNIX).bind("socket")
open("file", "w").write("x"); os.chmod("file", 0)
"""
    execution = within(20, code, workspace)
    assert [(f.path, f.kind) for f in execution.files] == [("file", "created")]
    assert [p.name for p in workspace.iterdir()] == ["file"]


def test_a_link_in_the_workspace_is_not_followed(workspace: Path) -> None:
    secret = workspace.parent / "answers.txt"
    secret.write_text("42")
    (workspace / "link").symlink_to(secret)
    (workspace / "up").symlink_to(workspace.parent)
    execution = within(20, "import os; print(os.listdir('.')); open('link', 'w').write('mine')", workspace)
    assert execution.stdout == "[]\n"
    assert secret.read_text() == "42"
    assert (workspace / "link").read_text() == "mine"
    (workspace / "up").unlink()


@pytest.mark.parametrize("code", ["import os; os.kill(1, 9); print('on')", "import os; os.kill(-1, 9); print('on')"])
def test_killing_the_supervisor(workspace: Path, code: str) -> None:
    execution = within(20, code, workspace)
    assert execution.status in ("ok", "error", "signal")


def test_stopping_the_parent_does_not_hang(workspace: Path) -> None:
    code = """
import os, signal
try: os.kill(os.getppid(), signal.SIGSTOP)
except PermissionError: print("refused")
os.kill(os.getpid(), signal.SIGSTOP)
"""
    assert within(10, code, workspace, SHORT).status == "wall_time"


def test_a_false_word_on_the_control_channel_makes_no_success(workspace: Path) -> None:
    code = "import os\nfor fd in range(3, 60):\n    try: os.write(fd, b'memory')\n    except OSError: pass\nexit(1)"
    assert within(20, code, workspace).status in ("error", "memory")


def test_side_by_side(tmp_path: Path) -> None:
    def one(n: int) -> Execution:
        here = tmp_path / str(n)
        here.mkdir()
        return run_code(f"open('mine', 'w').write('{n}'); print({n})", here, LIMITS)

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(one, range(12)))
    assert [e.stdout for e in done] == [f"{n}\n" for n in range(12)]
    assert [(tmp_path / str(n) / "mine").read_text() for n in range(12)] == [str(n) for n in range(12)]


def test_nothing_leaks_over_many_runs(workspace: Path) -> None:
    run_code("pass", workspace, LIMITS)
    handles, threads = _handles(), threading.active_count()
    for _ in range(10):
        run_code("import os; os.fork(); print(1)", workspace, LIMITS)
    assert (_handles(), threading.active_count()) == (handles, threads)


def test_death_of_the_caller_ends_the_program(workspace: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom mappa_core.sandbox import Limits, run_code\n"
        "print('ready', flush=True)\n"
        "run_code('import time\\ntime.sleep(600)', Path(sys.argv[1]), Limits(600.0, 20, 128, 8, 12, 2000))"
    )
    caller = subprocess.Popen([sys.executable, "-c", script, str(workspace)], stdout=subprocess.PIPE, cwd=PROJECT)
    assert caller.stdout is not None
    assert caller.stdout.readline() == b"ready\n"
    uid = 1_000_000_000 + caller.pid * 256

    def alive() -> bool:
        return any(_owner(p) == uid for p in Path("/proc").glob("[0-9]*"))

    _until(alive, 20)
    caller.kill()
    caller.wait()
    caller.stdout.close()
    _until(lambda: not alive(), 20)
    # Its control group is left; the next process that runs code removes it.
    left = f"mappa-{caller.pid}-0"
    assert list(Path("/sys/fs/cgroup").glob(f"pids/**/{left}"))
    cgroup.sweep("mappa")
    assert not list(Path("/sys/fs/cgroup").glob(f"pids/**/{left}"))


def _handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except FileNotFoundError:
        return None


def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
