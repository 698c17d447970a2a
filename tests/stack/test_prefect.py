"""A Prefect server, a worker, the shipped deployment: triggered, it finishes. All on 127.0.0.1."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError

import pytest

pytestmark = pytest.mark.stack
ROOT = Path(__file__).parent.parent.parent
PREFECT = str(Path(sys.executable).parent / "prefect")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextmanager
def running(command: list[str], environment: dict[str, str], cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (cwd / f"{Path(command[0]).name}-{command[1]}.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=cwd, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def get(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.loads(answer.read())


def wait_until_up(url: str, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while True:
        try:
            get(f"{url}/admin/version")
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def test_the_deployment_runs_when_triggered(
    project: Path, small_run: Path, small: tuple[str, ...], tmp_path: Path
) -> None:
    port = free_port()
    api = f"http://127.0.0.1:{port}/api"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_", "RAY_"))}
    environment |= {
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_LOCAL_STORAGE_PATH": str(tmp_path / "storage"),
        "PREFECT_API_URL": api,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "true",
    }

    def prefect(*arguments: str) -> str:
        command = [PREFECT, "--no-prompt", *arguments]
        done = subprocess.run(command, env=environment, cwd=project, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with running([PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port)], environment, tmp_path):
        wait_until_up(api, 120)
        prefect("work-pool", "create", "local", "--type", "process")
        prefect("deploy", "--all")
        (deployment,) = post(f"{api}/deployments/filter")
        assert deployment["schedules"][0]["schedule"]["cron"] == "0 3 * * *"
        with running([PREFECT, "worker", "start", "--pool", "local"], environment, tmp_path):
            overrides = json.dumps([*small, "steps=1"])
            prefect(
                "deployment", "run", "train-preset/lab-nightly", "--param", f"overrides={overrides}",
                "--param", 'directory="runs/deployed"',
            )  # fmt: skip
            state = wait_until_over(api, 400)
    assert state == "COMPLETED", (tmp_path / "prefect-worker.log").read_text()[-3000:]
    found = json.loads((project / "runs/deployed/summary.json").read_text())
    assert found["steps"] == 1
    assert found["seed"] != 0, "a scheduled run takes its seed from its time"


def post(url: str) -> list[dict]:
    request = urllib.request.Request(url, data=b"{}", headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


def wait_until_over(api: str, limit_s: float) -> str:
    """The final state of the first flow run that has ended badly, or of the deployed one."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        time.sleep(2)
        try:
            runs = post(f"{api}/flow_runs/filter")
        except HTTPError as error:  # SQLite is locked for a moment when flow and worker write at once
            if error.code not in (500, 503):
                raise
            continue
        for run in runs:
            if run["deployment_id"] and run["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
                return run["state_type"]
    return "still running"
