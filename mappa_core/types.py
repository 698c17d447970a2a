"""The words of the house, as frozen data. Read this file first.

Tokens are the truth, text is a view of them. A reward exists only where a coach gave one: there is no default score.
Standard library only, so that everything may import it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

SCORE_MAX = 10.0
"""A coach scores from 0 to this; reward = value / SCORE_MAX."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One row of a data set, as agents and coach may see it. Its `Key` is kept apart."""

    id: str
    kind: str
    """Which grader and rubric apply: "lab", "math"."""
    prompt: str
    stratum: str = "all"
    """For statistics by kind of problem; in the lab, the template."""
    files: tuple[str, ...] = ()
    """Public files laid into the workspace."""


@dataclass(frozen=True, slots=True)
class Key:
    """The answer of a problem. A type of its own, so that it can't leak by accident: graders only."""

    problem: str
    answer: str
    plan: str | None = None
    """Lab: the reference expression, e.g. "(3 + 4) * 5"."""


@dataclass(frozen=True, slots=True)
class Role:
    """One seat of a team. Placeholders of `prompt`: {problem}, {ROLE.text}, {ROLE.tool} (its last output, last tool
    answer); of `follow_up`: {tool}. All are filled in one pass: what is filled in is never expanded again."""

    name: str
    title: str
    duty: str
    """What the coach is told this role is for, in a sentence."""
    prompt: str
    follow_up: str = "{tool}"
    """The next turn's message, after the role's code ran."""
    tools: tuple[Literal["python"], ...] = ()
    max_turns: int = 1


@dataclass(frozen=True, slots=True)
class Team:
    """Roles in the order they act."""

    name: str
    roles: tuple[Role, ...]

    def role(self, name: str) -> Role:
        """The role called `name`; KeyError where there is none."""
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(f"team {self.name} has no role {name!r}; it has {[r.name for r in self.roles]}")


@dataclass(frozen=True, slots=True)
class FileChange:
    """What an execution did to one file of the workspace; `size` in bytes and `digest` are those after it."""

    path: str
    kind: Literal["created", "changed", "deleted"]
    size: int
    digest: str


ExecutionStatus = Literal["ok", "error", "wall_time", "cpu_time", "memory", "disk", "processes", "output", "signal"]


@dataclass(frozen=True, slots=True)
class Execution:
    """What running an action's code did. `error`: it ended by itself with an exit code other than 0."""

    status: ExecutionStatus
    exit_code: int | None
    """None where a signal ended it."""
    signal: int | None
    stdout: str
    """Head and tail; the middle, where it was too long, is replaced by a line that counts it."""
    stderr: str
    files: tuple[FileChange, ...] = ()
    seconds: float = field(default=0.0, compare=False)
    """Wall clock: volatile, outside every digest."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the sampler is asked: continue `prompt_tokens` as `role`'s policy."""

    episode: str
    role: str
    turn: int
    prompt_tokens: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Generation:
    """What the sampler answers: (T,) tokens, among them the final end-of-turn token where one was sampled, and the
    (T,) logprobs they were sampled with."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]
    policy: str
    """Digest of the weights that made it."""


@dataclass(frozen=True, slots=True)
class Action:
    """One generation of one role."""

    id: str
    """EPISODE/ROLE/TURN."""
    role: str
    turn: int
    seed: int
    prompt_tokens: tuple[int, ...]
    """(P,) exactly what the model saw."""
    output_tokens: tuple[int, ...]
    """(T,) exactly what it sampled, end-of-turn token included."""
    logprobs: tuple[float, ...]
    """(T,) the sampler's, in nats."""
    text: str
    """A view of `output_tokens`, special tokens left out, nothing stripped."""
    finish_reason: Literal["stop", "length"]
    """`length`: truncated."""
    policy: str
    execution: Execution | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """A problem and the actions of the team on it, in order."""

    id: str
    problem: Problem
    sample: int
    actions: tuple[Action, ...]
    stopped: Literal["finished", "context"] = "finished"
    """`context`: a prompt left no room for a token, so the later roles did not act."""

    def last(self, role: str) -> Action | None:
        """The last action of `role`, or None where it did not act."""
        return next((a for a in reversed(self.actions) if a.role == role), None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the deterministic grader says of an episode. Never made by the coach."""

    episode: str
    success: bool
    why: str
    metrics: dict[str, float] = field(default_factory=dict)
    """By-role facts, 0 or 1, e.g. `solver/plan_right`; a fact that does not apply is absent."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A coach's score of one action: `value` in 0..10."""

    action: str
    value: float
    reason: str
    blame: str | None = None
    """The role at fault, or None: nobody."""
    type: Literal["scored"] = "scored"

    @property
    def reward(self) -> float:
        """0..1."""
        return self.value / SCORE_MAX


@dataclass(frozen=True, slots=True)
class Unscored:
    """An action without a score, and why. It is out of the loss and out of the normalisation."""

    action: str
    cause: str
    type: Literal["unscored"] = "unscored"


Verdict = Scored | Unscored


@dataclass(frozen=True, slots=True)
class Sample:
    """An action as a training row. Its loss mask is: the T output tokens."""

    action: str
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    sampler_logprobs: tuple[float, ...]
    """(T,)"""
    reward: float
    """0..1, at the action's last token."""


@dataclass(frozen=True, slots=True)
class Row:
    """A sample ready for the optimiser: all (T,), over its output tokens."""

    sample: Sample
    old_logprobs: tuple[float, ...]
    """The trainer's own, at the version that sampled."""
    advantages: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """The weights of a role at a version: a Hugging Face directory and its digest."""

    role: str
    version: int
    path: str
    digest: str


@dataclass(frozen=True, slots=True)
class Counts:
    """Conservation of one role in one step: collected == trained + unscored + masked + skipped."""

    collected: int
    trained: int
    unscored: int
    masked: int
    skipped: int
