"""What a lab run costs here: start-up, a warm step, memory. `make bench`, or this file with a number of steps.

Prints a table and, as its last line, JSON. Start-up is from the command's first instant to the first training step's
episodes, less building the base and the evaluation before it. Memory is the peak over a sample every half second of the
PSS of the process tree plus shared memory in use.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import psutil

LIMITS = {"start_s": 90.0, "step_s": 4.0, "memory_gib": 8.0}


def main(steps: int) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "run"
        began = time.time()
        command = [sys.executable, "-m", "flows.cli", "run", "lab", "--fresh", "--set", f"steps={steps}"]
        process = subprocess.Popen([*command, "--dir", str(directory)], stdout=subprocess.DEVNULL)
        memory = _peak(process)
        if process.returncode:
            return process.returncode
        summary = json.loads((directory / "summary.json").read_text())
        ends = [(directory / "steps" / str(k) / "update.json").stat().st_mtime for k in range(steps)]
        first = (directory / "steps" / "0" / "collect.json").stat().st_mtime
    seconds = summary["seconds"]
    gaps = [b - a for a, b in pairwise(ends)]
    found = {
        "start_s": first - began - seconds.get("base", 0) - seconds["evaluate"] / _evaluations(summary),
        "step_s": statistics.median(gaps),
        "memory_gib": memory / 2**30,
        "total_s": time.time() - began,
        "seconds": seconds,
        "tokens_per_second": summary["tokens_per_second"],
    }
    for name, limit in LIMITS.items():
        print(f"{name:12} {found[name]:8.2f}   limit {limit:g}")
    print(json.dumps(found))
    return 0


def _evaluations(summary: dict) -> int:
    return len(summary["curve"])


def _peak(process: subprocess.Popen[bytes]) -> int:
    """Peak bytes of the tree under `process`, until it ends."""
    peak = 0
    while process.poll() is None:
        peak = max(peak, _tree(process.pid) + psutil.virtual_memory().shared)
        time.sleep(0.5)
    return peak


def _tree(pid: int) -> int:
    total = 0
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for one in processes:
        try:
            total += one.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8))
