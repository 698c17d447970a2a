"""Graders say whether an episode succeeded. Deterministic; they can't hang or be talked to, and no coach is one."""

from __future__ import annotations

from mappa_core.types import Episode, Key, Outcome


def outcome(episode: Episode, key: Key) -> Outcome:
    """Grades an episode by its problem's kind. ValueError: a kind without a grader, or another problem's key."""
    # Imported when needed: a lab run has no use for a mathematics library, nor its start for the time.
    if episode.problem.kind == "lab":
        from mappa_core.graders import lab

        return lab.grade(episode, key)
    if episode.problem.kind == "math":
        from mappa_core.graders import math

        return math.outcome(episode, key)
    raise ValueError(f"problem {episode.problem.id} is of kind {episode.problem.kind!r}; graders: lab, math")
