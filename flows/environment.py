"""Quiet, offline, and each project by itself: what the command line sets before Prefect, MLflow or Ray is imported.

Everything is a default: what the user has set stays. A Prefect server that is configured is used.
"""

from __future__ import annotations

import os
from pathlib import Path

QUIET = {
    "DO_NOT_TRACK": "true",
    "DVC_NO_ANALYTICS": "1",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Threads that spin while they wait: beside one busy neighbour the warm start took 15 to 30 times as long.
    "GOMP_SPINCOUNT": "0",
    "OMP_WAIT_POLICY": "passive",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
}


def settle(root: Path) -> None:
    """Sets the defaults for the project in `root`."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    home = root.absolute() / ".mappa" / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PREFECT_LOCAL_STORAGE_PATH", str(home / "storage"))
    if not _server_configured():
        os.environ.setdefault("PREFECT_HOME", str(home))


def _server_configured() -> bool:
    """Whether Prefect would talk to a server of the user's: its environment or a profile names one."""
    if "PREFECT_API_URL" in os.environ:
        return True
    profiles = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser() / "profiles.toml"
    return profiles.is_file() and "PREFECT_API_URL" in profiles.read_text()
