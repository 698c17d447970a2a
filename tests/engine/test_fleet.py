"""The Ray session: a local one leaves nothing behind, and two on one machine never meet."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mappa_core.engine.fleet import shares

SESSION = """
import sys
import ray
from mappa_core.engine.fleet import Session

@ray.remote(num_cpus=0.25)
class Actor:
    def ping(self): return 1

session = Session(keep_logs=sys.argv[1])
actor = Actor.options(name="same name").remote()
assert ray.get(actor.ping.remote(), timeout=60) == 1
print("up", session.namespace, len(ray.nodes()), str(session.logs), flush=True)
sys.stdin.readline()
session.stop()
print("down", len(session.processes()), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize(
    ("processors", "ranks", "share"), [(2, 2, 0.66), (1, 2, 0.33), (8, 2, 2.0), (4, 3, 1.0), (3, 3, 0.75)]
)
def test_sampler_and_ranks_fit_the_processors(processors: int, ranks: int, share: float) -> None:
    assert shares(processors, ranks)[0] == share
    assert share * (ranks + 1) <= processors


def test_ranks_that_train_together_want_no_more_threads_than_there_are_processors() -> None:
    for processors in (1, 2, 4, 7, 16):
        for ranks in (1, 2, 3):
            threads = shares(processors, ranks)[1]
            assert threads == 1 or threads * ranks <= processors


@pytest.mark.stack
def test_two_sessions_do_not_meet_and_leave_nothing_behind(tmp_path: Path) -> None:
    logs = [tmp_path / "one", tmp_path / "two"]
    first, second = (_start(place) for place in logs)
    try:
        up = [_said(p) for p in (first, second)]
        names, homes = [words[1] for words in up], [words[3] for words in up]
        assert [words[2] for words in up] == ["1", "1"]  # each sees one node: its own
        assert len(set(names)) == 2
        assert len(set(homes)) == 2

        _tell(first)
        assert _said(first) == ["down", "0"]
        assert not _named(homes[0])  # while the driver lives
        assert _named(homes[1])  # the other one is untouched
        assert not Path(homes[0]).exists()
        assert any(logs[0].glob("raylet*"))

        second.kill()  # as the kernel does, without a word
        _until(lambda: not _named(homes[1]), "Ray's processes outlive their killed driver")
    finally:
        for process in (first, second):
            process.kill()
            process.wait(timeout=10)
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


def _start(logs: Path) -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    command = [sys.executable, "-c", SESSION, str(logs)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def _said(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _named(logs: str) -> list[int]:
    """Processes of the session with these logs: their command or environment names its temporary directory."""
    home = logs.split("/session_")[0]
    found = []
    for process in psutil.process_iter():
        try:
            if home in " ".join(process.cmdline()) or home in " ".join(process.environ().values()):
                found.append(process.pid)
        except psutil.Error:  # it ended while we looked, or is not ours
            continue
    return found


def _until(true: object, otherwise: str, timeout_s: float = 40.0) -> None:
    assert callable(true)
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.5)
