"""Reads a run directory back: config, manifests, episodes, verdicts, outcomes, credits; and as a pandas table.

Names the files of a run, once. Refuses a file whose bytes are not what its manifest says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mappa_core.config import ConfigError, ExperimentConfig
from mappa_core.store import Manifest, RunDir, adapter, file_digest
from mappa_core.types import Episode, Outcome, Scored, Unscored, Verdict

if TYPE_CHECKING:
    import pandas as pd

EPISODES = "episodes.jsonl"
VERDICTS = "verdicts.jsonl"
OUTCOMES = "outcomes.jsonl"
CREDITS = "credits.jsonl"
HELDOUT_EPISODES = "heldout-episodes.jsonl"
HELDOUT_OUTCOMES = "heldout-outcomes.jsonl"


@dataclass(frozen=True, slots=True)
class Credit:
    """What an action was trained with."""

    action: str
    reward: float
    advantage: float
    """Mean over its tokens, normalised."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Everything kept of a training step; verdicts and credits by action, outcomes by episode."""

    step: int
    episodes: tuple[Episode, ...]
    verdicts: dict[str, Verdict]
    outcomes: dict[str, Outcome]
    credits: dict[str, Credit]


class LoadedRun:
    """A run directory, read only."""

    def __init__(self, path: Path) -> None:
        self.dir = RunDir(path)
        self.config: ExperimentConfig = self.dir.config()

    def summary(self) -> dict[str, Any]:
        """`summary.json`; ConfigError where the run has not ended."""
        path = self.dir.path / "summary.json"
        if not path.is_file():
            raise ConfigError(f"{self.dir.path} has no summary yet: the run has not ended")
        return json.loads(path.read_text())

    def steps(self) -> list[int]:
        """Steps whose episodes are there, in order."""
        return [s for s in self.dir.steps() if (self.dir.path / "steps" / str(s) / "collect.json").is_file()]

    def step(self, step: int) -> StepRecord:
        """All of step `step`; ConfigError where a part is missing or damaged."""
        episodes = self._rows(step, "collect", EPISODES, Episode)
        verdicts = self._rows(step, "score", VERDICTS, Verdict)
        outcomes = self._rows(step, "grade", OUTCOMES, Outcome)
        credits = self._rows(step, "update", CREDITS, Credit)
        return StepRecord(
            step,
            tuple(episodes),
            {v.action: v for v in verdicts},
            {o.episode: o for o in outcomes},
            {c.action: c for c in credits},
        )

    def actions(self) -> pd.DataFrame:
        """A row per action of every step: ids, role, turn, text, verdict, reward, advantage, its episode's success."""
        import pandas as pd

        return pd.DataFrame([row for step in self.steps() for row in _actions(self.step(step))])

    def _rows(self, step: int, stage: str, name: str, kind: Any) -> list[Any]:
        manifest: Manifest = self.dir.manifest(step, stage)
        path = self.dir.path / "steps" / str(step) / name
        if not path.is_file() or file_digest(path) != manifest[name].digest:
            raise ConfigError(f"{path} is missing or damaged: `mappa run` again with the same config restores it")
        return [adapter(kind).validate_json(line) for line in path.read_bytes().splitlines()]


def load_run(path: str | Path) -> LoadedRun:
    """The run in directory `path`; ConfigError where it is none."""
    return LoadedRun(Path(path))


def _actions(record: StepRecord) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for episode in record.episodes:
        for action in episode.actions:
            verdict, credit = record.verdicts.get(action.id), record.credits.get(action.id)
            scored = verdict if isinstance(verdict, Scored) else None
            rows.append(
                {
                    "step": record.step,
                    "episode": episode.id,
                    "action": action.id,
                    "role": action.role,
                    "turn": action.turn,
                    "stratum": episode.problem.stratum,
                    "text": action.text,
                    "tokens": len(action.output_tokens),
                    "finish_reason": action.finish_reason,
                    "status": action.execution.status if action.execution else None,
                    "value": scored.value if scored else None,
                    "blame": scored.blame if scored else None,
                    "cause": verdict.cause if isinstance(verdict, Unscored) else None,
                    "reward": scored.reward if scored else None,
                    "advantage": credit.advantage if credit else None,
                    "success": record.outcomes[episode.id].success,
                }
            )
    return rows
