"""Runs that are killed, at random moments and at each stage's border, end with the digests of an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tasks.orphans import MARK

pytestmark = [pytest.mark.stack, pytest.mark.slow]
SETTINGS = (
    "steps=5",
    "collect.problems=8",
    "evaluate.problems=12",
    "evaluate.every=3",
    "seed=77",
    "checkpoint.every=2",
)
BORDERS = ("0/collect", "1/score", "1/grade", "2/update", "3/evaluate", "3/update")
RANDOM = 10
Kill = Callable[[subprocess.Popen[bytes], Path], None]


RUN = ("run", "lab", *(word for pair in SETTINGS for word in ("--set", pair)))
LIMIT_S = 900.0
SHARED = Path("/dev/shm")  # noqa: S108


def _marked(run: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(run.resolve()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _at_border(border: str) -> Kill:
    step, stage = border.split("/")

    def kill(process: subprocess.Popen[bytes], run: Path) -> None:
        file = run / "steps" / step / f"{stage}.json"
        while process.poll() is None and not file.exists():
            time.sleep(0.005)
        process.kill()

    return kill


def _at_random(rng: random.Random) -> Kill:
    """After up to a minute: the driver, or anything that it started."""
    after, who = rng.uniform(2, 60), rng.random()

    def kill(process: subprocess.Popen[bytes], run: Path) -> None:
        deadline = time.monotonic() + after
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        victims = [process.pid, *(p.pid for p in _marked(run))]
        victim = victims[0] if who < 0.5 else victims[int(who * 1000) % len(victims)]
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return

    return kill


def test_killed_runs_end_as_an_undisturbed_one(
    project: Path, small_run: Path, environment: Callable[[Path], dict[str, str]], tmp_path: Path
) -> None:
    twin, log = tmp_path / "twin", tmp_path / "log.txt"
    shutil.copytree(project, twin, symlinks=True)

    def start(where: Path, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "flows.cli", *arguments]
        with log.open("ab") as file:
            return subprocess.Popen(command, cwd=where, env=environment(where), stdout=file, stderr=file)

    assert start(project, *RUN, "--dir", "runs/whole").wait(LIMIT_S) == 0, log.read_text()[-4000:]
    wanted = json.loads((project / "runs/whole/summary.json").read_text())

    run, shared = twin / "runs/killed", set(SHARED.iterdir())
    rng = random.Random(2026)
    kills = [*map(_at_border, BORDERS), *(_at_random(rng) for _ in range(RANDOM))]
    process = start(twin, *RUN, "--dir", "runs/killed")
    for kill in kills:
        kill(process, run)
        assert process.wait(LIMIT_S) in (-signal.SIGKILL, 0, 2), log.read_text()[-4000:]
        if (run / "summary.json").exists():
            break
        again = ("resume", "runs/killed") if (run / "config.json").exists() else (*RUN, "--dir", "runs/killed")
        process = start(twin, *again)
    assert process.wait(LIMIT_S) in (-signal.SIGKILL, 0), log.read_text()[-4000:]
    found = json.loads((run / "summary.json").read_text())
    for name in ("policy_digests", "success_before", "success_after", "by_role", "conservation", "curve"):
        assert found[name] == wanted[name]
    assert _marked(run) == []
    assert set(SHARED.iterdir()) <= shared
