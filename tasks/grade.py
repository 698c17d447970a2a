"""Grade: the deterministic grader's outcome of each episode, and rates over them. Metrics only, never a reward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from mappa_core.config import digest
from mappa_core.graders import outcome
from mappa_core.runs import EPISODES, OUTCOMES
from mappa_core.store import Manifest, code_digest
from mappa_core.types import Episode, Key, Outcome
from tasks.run import Run
from tasks.stage import Made, stage

CODE = (
    "mappa_core.arithmetic",
    "mappa_core.graders",
    *(f"mappa_core.graders.{m}" for m in ("lab", "math", "math_process")),
    "tasks.grade",
)


def graded(episodes: Sequence[Episode], keys: Mapping[str, Key]) -> list[Outcome]:
    """An outcome per episode, in order."""
    return [outcome(episode, keys[episode.problem.id]) for episode in episodes]


def rates(episodes: Sequence[Episode], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Means: success, each by-role fact where it applies, and by role tool use, turns, tokens and truncation."""
    by_name: defaultdict[str, list[float]] = defaultdict(list)
    for one in outcomes:
        by_name["success"].append(one.success)
        for name, value in one.metrics.items():
            by_name[name].append(value)
    for episode in episodes:
        for action in episode.actions:
            by_name[f"{action.role}/tokens"].append(len(action.output_tokens))
            by_name[f"{action.role}/truncated"].append(action.finish_reason == "length")
        for role in {a.role for a in episode.actions}:
            own = [a for a in episode.actions if a.role == role]
            by_name[f"{role}/turns"].append(len(own))
            if any(a.execution for a in own) or role == "coder":
                by_name[f"{role}/tool_use"].append(any(a.execution is not None for a in own))
    return {name: fmean(values) for name, values in sorted(by_name.items())}


def _key(run: Run, step: int, episodes: Manifest) -> str:
    return digest(["grade", episodes[EPISODES].digest, run.train.digest, code_digest(*CODE)])


def _compute(run: Run, step: int, episodes: Manifest) -> Made:
    played = run.store.rows(episodes[EPISODES], Episode)
    outcomes = graded(played, run.train.keys)
    return Made([run.store.put_rows(OUTCOMES, Outcome, outcomes)], {"rates": rates(played, outcomes)})


grade = stage("grade", _key, _compute, retries=1)
