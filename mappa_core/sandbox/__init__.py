"""The sandbox: `run_code(code, workspace, limits) -> Execution`. Agents' code is hostile and never runs bare."""

from mappa_core.sandbox.launch import SandboxError
from mappa_core.sandbox.local import Isolation, Limits, check, run_code

__all__ = ["Isolation", "Limits", "SandboxError", "check", "run_code"]
