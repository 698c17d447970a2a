"""Live progress of a run, in the terminal and in Prefect's log: the stage at work, steps done, success, time left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from prefect.logging import get_run_logger
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

WORDS = {
    "base": "warm start of the base",
    "start": "starting Ray, sampler and trainer",
    "gate": "checking the base",
    "evaluate": "evaluating",
    "collect": "the team plays",
    "score": "the coach scores",
    "grade": "grading",
    "update": "updating the policies",
}


class Telling:
    """A `tasks.run.Listener` that tells a person; a context manager around the run."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._success = "?"
        self._step = 0
        self._computed: list[float] = []
        self._update_reused = False
        self._paused = ""
        self._step_began = time.monotonic()
        self._console = Console(highlight=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._task = self._bar.add_task("starting", total=steps, note="")

    def __enter__(self) -> Telling:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, stage: str, step: int, facts: Mapping[str, Any]) -> None:
        if not facts:
            if stage == "collect":
                self._step_began = time.monotonic()
            self._bar.update(self._task, description=WORDS.get(stage, stage))
            if stage == "start":
                self._log(f"{WORDS[stage]} ...")
        elif "waiting" in facts:
            self._bar.update(self._task, note=facts["waiting"])
        elif "damaged" in facts:
            self._say(f"{facts['damaged']}: it was made again")
        elif "paused" in facts:
            self._bar.update(self._task, note="paused: the disk is full")
            if facts["paused"] != self._paused:
                self._paused = facts["paused"]
                self._say(f"paused: {self._paused}")
        elif "total" in facts:
            if facts["done"] == 1:
                self._log(f"{WORDS[stage]} ...")
            note = f"{facts['done']}/{facts['total']} warm-start steps, loss {facts['loss']:.3f}"
            self._bar.update(self._task, note=note)
        elif stage == "evaluate":
            found = facts["success"]
            self._success = f"{found['value']:.2f}"
            span = f"[{found['low']:.2f}, {found['high']:.2f}]"
            self._say(f"after {step:3} steps: held-out success {found['value']:.3f} {span}{_again(facts)}")
        elif stage == "gate":
            rates = facts["rates"]
            self._say(
                f"base: team success {rates['success']:.2f}, plan right {rates['solver/plan_right']:.2f} at T = 1, "
                f"copies digits {facts['ceiling']:.2f}{_again(facts)}"
            )
        elif stage == "update":
            self._update_reused = bool(facts["reused"])
        elif stage == "start":
            self._say("Ray, vLLM sampler and ZeRO-3 ranks are up")

    def step(self, step: int, success: float, scores: Mapping[str, float | None]) -> None:
        """Tells that training step `step` (from 0) is done."""
        seconds = time.monotonic() - self._step_began
        reused = self._update_reused
        if not reused:
            self._computed.append(seconds)
        left = self._left(step + 1)
        told = " ".join(f"{role} {'-' if v is None else format(v, '.1f')}" for role, v in scores.items())
        self._bar.update(self._task, completed=step + 1, note=f"success {self._success}, {left} left")
        again = " (reused)" if reused else ""
        line = f"step {step + 1:3}/{self._steps}  success {success:.2f}  coach {told}  {seconds:4.1f} s  {left} left"
        self._log(line + again)

    def _left(self, done: int) -> str:
        if not self._computed:
            return "?"
        recent = self._computed[-5:]
        seconds = round(sum(recent) / len(recent) * (self._steps - done))
        return f"{seconds // 60}:{seconds % 60:02}"

    def _say(self, line: str) -> None:
        """Above the bar, in every terminal and log."""
        self._console.print(Text(line), soft_wrap=True)
        get_run_logger().info(line)

    def _log(self, line: str) -> None:
        """Where there is no bar: a line."""
        if not self._console.is_terminal:
            self._console.print(Text(line), soft_wrap=True)
        get_run_logger().info(line)


def _again(facts: Mapping[str, Any]) -> str:
    return "  (reused)" if facts.get("reused") else ""
