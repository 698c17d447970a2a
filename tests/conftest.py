"""Tests see nothing of whoever runs them: no server, cache, home or key of theirs, and no network.

Set when this file is imported, before any test imports Prefect, MLflow or Ray: they read it then, and what they start
inherits it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from flows.environment import QUIET

REPOSITORY = Path(__file__).resolve().parent.parent
HOME = Path(tempfile.mkdtemp(prefix="mappa-tests-"))

THEIRS = ("PREFECT_", "MLFLOW_", "RAY_", "DVC_", "VLLM_", "MAPPA_", "OPENAI_", "ANTHROPIC_")
"""What a user may have set for their own work; MAPPA_TEST_DATA alone is for us."""

for name in [n for n in os.environ if n.startswith(THEIRS) and n != "MAPPA_TEST_DATA"]:
    del os.environ[name]
os.environ.update(QUIET)
os.environ.update(
    HOME=str(HOME),
    XDG_CACHE_HOME=str(HOME / "cache"),
    XDG_CONFIG_HOME=str(HOME / "config"),
    HF_HOME=str(HOME / "huggingface"),
    MPLCONFIGDIR=str(HOME / "matplotlib"),
    MPLBACKEND="agg",
    PREFECT_HOME=str(HOME / "prefect"),
    PREFECT_LOCAL_STORAGE_PATH=str(HOME / "prefect" / "storage"),
)


def pytest_unconfigure() -> None:
    """Leaves nothing behind."""
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The public benchmark files, which are not part of the repository: MAPPA_TEST_DATA, or shared/data beside it."""
    directory = Path(os.environ.get("MAPPA_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if not directory.is_dir():
        pytest.skip(f"needs the public benchmark files: no folder {directory}; set MAPPA_TEST_DATA")
    return directory
