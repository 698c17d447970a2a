"""A control: the coach's scores, dealt out again at random among the actions of the same role.

Every role keeps the scores it earned, so level and spread stay and only *which action* earned them is lost. A method
that still learns from these does not learn from blame. Pass a step's verdicts, all of them at once.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from mappa_core.types import Scored, Verdict


def shuffled(verdicts: Sequence[Verdict], seed: int) -> list[Verdict]:
    """The verdicts in their order, value, reason and blame permuted within each role; Unscored stay where they are."""
    places: dict[str, list[int]] = defaultdict(list)
    for at, verdict in enumerate(verdicts):
        if isinstance(verdict, Scored):
            places[_role(verdict.action)].append(at)
    out = list(verdicts)
    for role, at in sorted(places.items()):
        dealt = [verdicts[i] for i in at]
        random.Random(f"shuffled/{seed}/{role}").shuffle(dealt)
        for i, verdict in zip(at, dealt, strict=True):
            out[i] = replace(verdict, action=verdicts[i].action)
    return out


def _role(action: str) -> str:
    """The role in an action's id, EPISODE/ROLE/TURN."""
    _, role, turn = action.rsplit("/", 2)
    if not turn.isdigit():
        raise ValueError(f"not an action id: {action!r}; expected EPISODE/ROLE/TURN")
    return role
