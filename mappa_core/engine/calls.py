"""Waiting for actors: every wait has a limit and says what it waits for; every failure is one typed error.

Refuses to wait for ever, and to let Ray's own exceptions out.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray import exceptions

import mappa_core
from mappa_core.errors import UserError

# Spinning OpenMP threads stop their neighbours: of two busy processes on two cores, each waits for the other's barrier.
_QUIET = {
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "true",
}


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class EngineError(UserError, RuntimeError):
    """The engine can't go on; the message is one line: what was waited for, what happened, where to look."""


def actor_env(threads: int, more: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """The environment of an engine actor: it must be set before its first import, so Ray's runtime_env carries it."""
    root = str(Path(mappa_core.__file__).parent.parent)
    return {**_QUIET, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": root, **(more or {})}


def wait(refs: Any, timeout_s: float, what: str) -> Any:
    """The value of `refs` (one or a list), within `timeout_s` seconds; EngineError says that `what` failed and why."""
    try:
        return ray.get(refs, timeout=timeout_s)
    except (exceptions.RayError, TimeoutError) as error:
        raise _told(error, timeout_s, what) from error


async def wait_async(ref: Any, timeout_s: float, what: str) -> Any:
    """As `wait`, for one reference, without blocking the event loop."""
    try:
        return await asyncio.wait_for(ref, timeout_s)
    except (exceptions.RayError, TimeoutError) as error:
        raise _told(error, timeout_s, what) from error


def _told(error: Exception, timeout_s: float, what: str) -> EngineError:
    if isinstance(error, TimeoutError):  # Ray's GetTimeoutError is one too
        return EngineError(
            f"{what}: no answer in {timeout_s:.0f} s; raise engine.*_timeout_s or look in the run's logs/"
        )
    if isinstance(error, exceptions.OutOfMemoryError):
        return EngineError(f"{what}: ended for lack of memory; lower engine.kv_cache_gib or engine.pack_tokens")
    if isinstance(error, exceptions.RayTaskError):
        return EngineError(f"{what}: {_last_line(error)}")
    return EngineError(f"{what}: its process died ({_died(error)}); look in the run's logs/")


def _last_line(error: exceptions.RayTaskError) -> str:
    """The cause in one line, without the actor's traceback."""
    cause = error.cause
    return f"{type(cause).__name__}: {cause}".replace("\n", " ")[:2000]


def _died(error: Exception) -> str:
    """What Ray says of a dead actor, in a line: the last one, its cause, where it died while it started."""
    lines = [line for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1 if "creation task" in lines[0] else 0].strip()
