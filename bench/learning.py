"""Does the lab learn, and from blame? Three warm-start seeds, each with the coach's scores, with the same ones shuffled
among a role's actions of a step, and label-free. With the coach success must rise by 40 points and plans by 20; when
shuffled success must rise by less than 10.

`python bench/learning.py [OUT]`: prints a table, leaves the run directories in OUT (default runs/learning); about
15 minutes. Success is measured on held-out problems by sampling, before and after; the interval is over problems.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SEEDS = (0, 1, 2)
ARMS = {
    "coach": [],
    "shuffled": ["--set", "coach.ablation=shuffled"],
    "label-free": ["--set", "coach.sees_answer=false"],
}


def main(out: Path, arms: list[str]) -> int:
    print(f"{'seed':>4} {'arm':>10} {'before':>22} {'after':>22} {'rise':>6} {'plan':>14}")
    for seed in SEEDS:
        for arm in arms:
            found = _run(out / f"{arm}-{seed}", seed, ARMS[arm])
            before, after = found["success_before"], found["success_after"]
            plan = found["by_role"]["solver"]["plan_right"]
            print(
                f"{seed:4} {arm:>10} {_interval(before):>22} {_interval(after):>22} "
                f"{100 * (after['value'] - before['value']):+6.1f} {plan['before']:6.2f} -> {plan['after']:.2f}",
                flush=True,
            )
    return 0


def _run(directory: Path, seed: int, more: list[str]) -> dict:
    """The summary of a run; one that is there already is not made again."""
    if not (directory / "summary.json").is_file():
        command = [sys.executable, "-m", "flows.cli", "run", "lab", "--dir", str(directory)]
        command += ["--set", f"model.warm_seed={seed}", "--set", f"seed={seed}", *more]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads((directory / "summary.json").read_text())


def _interval(found: dict) -> str:
    return f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/learning"), sys.argv[2:] or list(ARMS)))
