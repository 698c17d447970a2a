"""Grades a lab episode against its Key: success of the team, and by role what went right. And the gate of a lab base.

A fact that does not apply to an episode is absent, never 0: where there was no plan, nothing can agree with it.
"""

from __future__ import annotations

from fractions import Fraction

from mappa_core import arithmetic
from mappa_core.errors import UserError
from mappa_core.types import Action, Episode, Key, Outcome


def grade(episode: Episode, key: Key) -> Outcome:
    """Success: the Verifier's last output boxes the Key's number. ValueError where the Key is another problem's."""
    if key.problem != episode.problem.id:
        raise ValueError(f"episode {episode.id} is graded with the key of {key.problem}; join keys by problem id")
    right = arithmetic.number(key.answer)
    if right is None:
        raise ValueError(f"key of {key.problem}: answer {key.answer!r} is not a number")
    answer = _answer(episode)
    success = answer == right
    why = "right answer" if success else "no number in a box" if answer is None else f"{answer} is not {right}"
    return Outcome(episode.id, success, why, {n: float(fact) for n, fact in _facts(episode, right, key).items()})


def _facts(episode: Episode, right: Fraction, key: Key) -> dict[str, bool]:
    """By-role facts.

    solver/plan_right  the plan has the key's value and the reference plan's numbers
    coder/runs         the last program ended well and printed a number (False: none was written)
    coder/agrees       it ran, and that number is the value of its plan; absent where that plan has no value
    verifier/faithful  the box holds the number it was shown; absent where it was shown none
    """
    facts: dict[str, bool] = {}
    solver, coder, verifier = (episode.last(role) for role in ("solver", "coder", "verifier"))
    plan = None if solver is None else arithmetic.value(solver.text)
    if solver is not None:
        same = key.plan is None or arithmetic.numbers(solver.text) == arithmetic.numbers(key.plan)
        facts["solver/plan_right"] = plan == right and same
    result = printed(episode)
    if coder is not None:
        facts["coder/runs"] = result is not None
        if plan is not None:
            facts["coder/agrees"] = result == plan
    if verifier is not None and result is not None:
        facts["verifier/faithful"] = _answer(episode) == result
    return facts


def _answer(episode: Episode) -> Fraction | None:
    verifier = episode.last("verifier")
    box = None if verifier is None else arithmetic.boxed(verifier.text)
    return None if box is None else arithmetic.number(box)


def printed(episode: Episode) -> Fraction | None:
    """The number the coder's last program printed, or None: none ran, an error, no number."""
    ran: list[Action] = [a for a in episode.actions if a.role == "coder" and a.execution is not None]
    if not ran or ran[-1].execution is None or ran[-1].execution.status != "ok":
        return None
    return arithmetic.last_number(ran[-1].execution.stdout)


class BaseError(UserError, ValueError):
    """A base that would make a run show the wrong thing."""


def check_base(success: float, plan_right: float, ceiling: float) -> None:
    """The gate of a lab base, by its rates at temperature 1 on training problems; BaseError says what is off.

    It must be weak enough that there is something to learn, plan both rightly and wrongly, and copy digits: then what
    is learned is who is to blame, not a format.
    """
    for name, found, (low, high) in (
        ("team success", success, (0.10, 0.35)),
        ("plan right", plan_right, (0.35, 0.65)),
        ("digits copied", ceiling, (0.90, 1.0)),
    ):
        if not low <= found <= high:
            raise BaseError(
                f"the base's {name} is {found:.2f}, not {low} to {high}: change model.warm_seed, model.warm_steps or "
                "model.weakness"
            )
