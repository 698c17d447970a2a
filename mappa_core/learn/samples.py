"""Episodes and verdicts -> the samples of one role, and where every action of it went.

Refuses an action without exactly one verdict: a reward exists only where a coach gave one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mappa_core.types import Action, Counts, Episode, Sample, Scored, Verdict


@dataclass(frozen=True, slots=True)
class Selection:
    """What a role trains on in a step; `samples` is empty where its update is skipped."""

    role: str
    samples: tuple[Sample, ...]
    counts: Counts


def select(
    role: str, episodes: Iterable[Episode], verdicts: Iterable[Verdict], truncated: Literal["keep", "mask"]
) -> Selection:
    """The samples of `role`, in the order its actions were played, and the conservation count.

    An unscored action is left out first; of the scored ones `mask` leaves out the truncated. Where all rewards that
    remain are equal there is nothing to learn: no sample, and all of them count as skipped. ValueError where an
    action of the role has no verdict or two, or no token.
    """
    actions = [a for episode in episodes for a in episode.actions if a.role == role]
    by_action = _by_action(verdicts)
    scored: list[tuple[Action, Scored]] = []
    for action in actions:
        verdict = by_action.get(action.id)
        if verdict is None:
            raise ValueError(f"action {action.id} has no verdict: score the whole step before it is trained on")
        if isinstance(verdict, Scored):
            scored.append((action, verdict))
    kept = [(a, v) for a, v in scored if truncated == "keep" or a.finish_reason != "length"]
    samples = tuple(_sample(a, v) for a, v in kept)
    trained = samples if spread(samples) > 0 else ()
    counts = Counts(
        collected=len(actions),
        trained=len(trained),
        unscored=len(actions) - len(scored),
        masked=len(scored) - len(kept),
        skipped=len(samples) - len(trained),
    )
    return Selection(role, trained, counts)


def spread(samples: tuple[Sample, ...]) -> float:
    """Largest reward less smallest; 0 where there is none or one."""
    rewards = [s.reward for s in samples]
    return max(rewards) - min(rewards) if rewards else 0.0


def _by_action(verdicts: Iterable[Verdict]) -> dict[str, Verdict]:
    by_action: dict[str, Verdict] = {}
    for verdict in verdicts:
        if verdict.action in by_action:
            raise ValueError(f"action {verdict.action} has two verdicts: score it once")
        by_action[verdict.action] = verdict
    return by_action


def _sample(action: Action, verdict: Scored) -> Sample:
    if not action.output_tokens or len(action.logprobs) != len(action.output_tokens):
        raise ValueError(
            f"action {action.id} has {len(action.output_tokens)} tokens and {len(action.logprobs)} logprobs: "
            "one logprob per token, at least one token"
        )
    return Sample(action.id, action.prompt_tokens, action.output_tokens, action.logprobs, verdict.reward)
