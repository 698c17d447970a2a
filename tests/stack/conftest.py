"""A project of its own for the stack tests: data, deployments and a store, in which the lab's base is built once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SMALL = ("steps=3", "collect.problems=8", "evaluate.problems=12", "evaluate.every=2")
"""A lab run of a minute, on the same base as the preset."""

Mappa = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a clone, whose data are built."""
    path = tmp_path_factory.mktemp("project")
    for name in ("flows", "tasks", "mappa_core", "configs"):
        (path / name).symlink_to(ROOT / name)
    for name in ("data.dvc", "prefect.yaml"):
        shutil.copy(ROOT / name, path)
    (path / "mlruns").mkdir()
    assert run_mappa(path, "data", "build").returncode == 0
    return path


def _environment(project: Path) -> dict[str, str]:
    """The user's own server and settings must not be met: the command makes its own under the project."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_", "RAY_"))}
    return kept | {"HOME": str(project), "PYTHONPATH": str(ROOT)}


def run_mappa(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, as a user types it."""
    command = [sys.executable, "-m", "flows.cli", *arguments]
    settings = _environment(project)
    return subprocess.run(command, cwd=project, env=settings, capture_output=True, text=True, timeout=900)


def as_options(settings: tuple[str, ...]) -> list[str]:
    return [word for pair in settings for word in ("--set", pair)]


@pytest.fixture(scope="session")
def environment() -> Callable[[Path], dict[str, str]]:
    """The environment of a command in a project."""
    return _environment


@pytest.fixture(scope="session")
def mappa(project: Path) -> Mappa:
    return lambda *arguments: run_mappa(project, *arguments)


@pytest.fixture(scope="session")
def small() -> tuple[str, ...]:
    """The overrides of the small run."""
    return SMALL


@pytest.fixture(scope="session")
def small_run(project: Path, mappa: Mappa) -> Path:
    """The directory of a small lab run."""
    done = mappa("run", "lab", *as_options(SMALL), "--dir", "runs/small")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return project / "runs/small"
