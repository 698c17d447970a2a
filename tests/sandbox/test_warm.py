"""A sandbox serves one program after another; each is as if it were the first."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import psutil
import pytest

from mappa_core.sandbox import Limits, SandboxError, run_code
from mappa_core.sandbox.member import Member, Numbers
from mappa_core.types import Execution

LIMITS = Limits(wall_time_s=60.0, cpu_time_s=30, memory_mb=256, disk_mb=16, processes=16, output_chars=4000)
ADDRESSES = "print(object(), [id([]) for _ in range(3)], {object(): 1}, id('a' * 99), id(print), list({'a', 'b', 'c'}))"


def run(code: str, workspace: Path, preload: tuple[str, ...] = ()) -> Execution:
    return run_code(code, workspace, LIMITS, preload)


def _sandboxes() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if "bwrap" in p.name()]


def test_the_twentieth_execution_is_as_the_first(tmp_path: Path) -> None:
    for sandbox in _sandboxes():
        sandbox.kill()
        sandbox.wait()
    said = []
    for n in range(20):
        said.append(run(ADDRESSES, tmp_path).stdout)
        run(f"x = [0] * {10 ** (n % 7)}; print('y' * {n * 100}); open('f{n}', 'w').write('z'); 1 / ({n} % 2)", tmp_path)
    assert set(said) == {said[0]}
    assert said[0].startswith("<object object at 0x")


def test_a_program_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    poison = """
import builtins, ctypes, os, signal, socket, sys
open("/tmp/left", "w").write("x"); os.chdir("/tmp"); os.umask(0o777); os.nice(5)
print_ = ctypes.CDLL(None)
print_.shmget(7, 4096, 0o1666)
s = socket.socket(); s.bind(("127.0.0.1", 4242)); s.listen()
c = socket.create_connection(("127.0.0.1", 4242)); s.accept()[0].close(); c.close()
for i in range(3, 40):
    try: os.close(i)
    except OSError: pass
signal.signal(signal.SIGTERM, signal.SIG_IGN)
builtins.print = None; sys.modules["math"] = None; sys.path[:] = []; os.environ["LEFT"] = "1"
"""
    assert run(poison, tmp_path).status == "ok"
    look = """
import ctypes, math, os, signal, socket
print(os.listdir("/tmp"), os.getcwd(), os.environ.get("LEFT"), os.nice(0), math.pi > 3)
print(ctypes.CDLL(None).shmget(7, 4096, 0), signal.getsignal(signal.SIGTERM))
s = socket.socket(); s.bind(("127.0.0.1", 4242)); s.listen()
socket.create_connection(("127.0.0.1", 4242)); print("free")
"""
    assert run(look, tmp_path).stdout == f"[] /workspace None {os.nice(0)} True\n-1 0\nfree\n"


def test_the_end_of_a_program_is_that_of_an_interpreter(tmp_path: Path) -> None:
    code = """
import atexit, sys, threading, time
class Last:
    def __del__(self): print("collected")
last = Last(); last.itself = last
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
f = open("kept", "w"); f.write("not closed")
sys.stdout.write("no line end")
"""
    execution = run(code, tmp_path)
    assert (execution.status, execution.stdout) == ("ok", "no line endthread\nat exit\ncollected\n")
    assert (tmp_path / "kept").read_text() == "not closed"
    assert run("import sys; sys.exit(300)", tmp_path).exit_code == 300 % 256
    assert run("import sys; sys.stdout = None", tmp_path).status == "ok"
    assert run("import sys; sys.stdout.close()", tmp_path).status == "ok"


def test_modules_imported_before(tmp_path: Path) -> None:
    code = (
        "import sys; print('pandas' in sys.modules); import numpy, random; print(random.random(), numpy.random.rand())"
    )
    first, second = (run(code, tmp_path, ("pandas",)).stdout.split() for _ in range(2))
    assert first[0] == "True"
    assert first[1] != second[1]
    assert first[2] != second[2]
    assert run("import sys; print('pandas' in sys.modules)", tmp_path).stdout == "False\n"
    with pytest.raises(SandboxError, match="No module named 'no_such_module'"):
        run("print(1)", tmp_path, ("no_such_module",))


def test_a_sandbox_that_died_is_replaced(tmp_path: Path) -> None:
    run("print(1)", tmp_path)
    for sandbox in _sandboxes():
        os.kill(sandbox.pid, signal.SIGKILL)
        sandbox.wait()
    assert run("print(2)", tmp_path).stdout == "2\n"


def test_a_sandbox_outlives_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    for sandbox in _sandboxes():
        sandbox.kill()
        sandbox.wait()
    for _ in range(2):
        thread = threading.Thread(target=run, args=("print(1)", tmp_path))
        thread.start()
        thread.join()
    before = {p.pid for p in _sandboxes()}
    run("print(1)", tmp_path)
    assert {p.pid for p in _sandboxes()} == before


def test_without_a_user_of_its_own_a_program_has_no_powers() -> None:
    code = b"""
import ctypes, os
status = dict(line.split(":\t") for line in open("/proc/self/status").read().splitlines())
print(status["CapPrm"], status["CapEff"], status["CapAmb"], status["NoNewPrivs"], status["Seccomp"])
libc = ctypes.CDLL(None)
print(libc.unshare(0x10000000), libc.mount(b"none", b"/tmp", b"tmpfs", 0, 0), os.listdir("/workspace"))
"""
    member = Member(None, (), lambda _: None)
    session = member.session(code, Numbers(10, 128, 8, 8))
    session.control.send(b"g")
    said = b""
    while more := os.read(session.out, 4096):
        said += more
    session.control.close()
    for handle in (session.out, session.err, session.workspace, session.init):
        os.close(handle)
    assert member.close() == ""
    assert said.decode() == "0000000000000000 0000000000000000 0000000000000000 1 2\n-1 -1 []\n"
