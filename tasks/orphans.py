"""What a killed run leaves running: found by a mark in its environment, and ended.

Every process that a run starts inherits the mark: Ray, its actors, the Prefect server of a run without one. Sandboxes
don't: they die with the process that started them. Refused: to guess. Only with the run directory held is whoever has
the mark an orphan.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

MARK = "MAPPA_RUN"
WAIT_S = 10.0


def mark(directory: Path) -> None:
    """From now on what this process starts belongs to the run in `directory`."""
    os.environ[MARK] = str(directory.resolve())


def end_orphans(directory: Path) -> list[int]:
    """Ends what an earlier process of the run left; their process ids. Returns when they are gone."""
    mine = psutil.Process()
    spared = {mine, *mine.parents(), *mine.children(recursive=True)}
    found = [p for p in psutil.process_iter() if p not in spared and _mark(p) == str(directory.resolve())]
    for process in found:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(found, timeout=WAIT_S)
    return [process.pid for process in found]


def _mark(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except psutil.Error:  # another user's, or gone
        return None
