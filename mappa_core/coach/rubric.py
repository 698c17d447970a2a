"""The rubric coach: a score of 0 to 10 for every action by rule, from role, context, action and execution.

A role is not blamed for a wrong result that it was handed where nothing it saw contradicts it. With `sees_answer` plan
and answers are also held against the Key, by value and by form; without it only visible evidence counts: form, whether
the code ran, whether it agrees with the plan, whether the answer is the tool's. Refused: a default. A role or a kind of
problem without a rule, and a missing Key, are Unscored.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from mappa_core import arithmetic
from mappa_core.teams import language
from mappa_core.teams.language import python_code
from mappa_core.types import Action, Episode, Key, Scored, Unscored, Verdict

_CALCULATION = re.compile(r"(?<![\d.,)])([\d(][\d\s+\-*/().]{0,120})=\s*\$?\s*(-?\d+(?:,\d{3})*(?:\.\d+)?)")
"""In 3 + 4 = 7 * 2 = 14 only the first part is read."""


class Judged(NamedTuple):
    """0..10, why, and who is at fault."""

    value: float
    reason: str
    blame: str | None = None


class Seen(NamedTuple):
    """What a rule looks at: an action and what came before it. `key` is None where the coach may not see it."""

    episode: Episode
    before: tuple[Action, ...]
    action: Action
    key: Key | None

    def said(self, role: str) -> str | None:
        """The last output of `role` before this action."""
        return next((a.text for a in reversed(self.before) if a.role == role), None)

    def ran(self) -> Action | None:
        """The last action before this one whose code was run."""
        return next((a for a in reversed(self.before) if a.execution is not None), None)


Rule = Callable[[Seen], Judged]


@dataclass(frozen=True, slots=True)
class RubricCoach:
    """Call it with an episode and, where `sees_answer`, its Key: a verdict per action, in their order."""

    sees_answer: bool

    def __call__(self, episode: Episode, key: Key | None) -> list[Verdict]:
        if self.sees_answer and key is None:
            return [Unscored(a.id, "no Key: this rubric judges against the answer") for a in episode.actions]
        shown = key if self.sees_answer else None
        return [
            _verdict(Seen(episode, episode.actions[:at], action, shown)) for at, action in enumerate(episode.actions)
        ]

    def digest(self) -> str:
        """BLAKE2b-128 of the rules (this file, and what it reads with) and settings, in hex: for cache keys."""
        made = hashlib.blake2b(f"sees_answer={self.sees_answer}".encode(), digest_size=16)
        for source in (__file__, arithmetic.__file__, language.__file__):
            made.update(Path(source).read_bytes())
        return made.hexdigest()


def _verdict(seen: Seen) -> Verdict:
    rule = RULES.get((seen.episode.problem.kind, seen.action.role))
    if rule is None:
        return Unscored(
            seen.action.id, f"no rule for {seen.action.role!r} on problems of kind {seen.episode.problem.kind!r}"
        )
    judged = rule(seen)
    return Scored(seen.action.id, judged.value, judged.reason, judged.blame)


def printed(action: Action | None) -> Fraction | None:
    """The number that an action's code printed last, or None: no code, an error, no number."""
    if action is None or action.execution is None or action.execution.status != "ok":
        return None
    return arithmetic.last_number(action.execution.stdout)


def _lab_solver(seen: Seen) -> Judged:
    plan = seen.action.text
    worth = arithmetic.value(plan)
    if worth is None:
        return Judged(0, "not an arithmetic expression", "solver")
    same_numbers = arithmetic.numbers(plan) == arithmetic.numbers(seen.episode.problem.prompt)
    if seen.key is None:
        return Judged(8, "a plan of the problem's numbers") if same_numbers else Judged(2, "other numbers", "solver")
    if worth != arithmetic.number(seen.key.answer):
        return Judged(2 if same_numbers else 1, "a plan for another answer", "solver")
    return Judged(10, "the right plan") if same_numbers else Judged(6, "right value by other numbers", "solver")


def _lab_coder(seen: Seen) -> Judged:
    if seen.action.turn > 0 and seen.action.execution is None:
        return _lab_stop(seen)
    if seen.action.execution is None:
        return Judged(0, "no program", "coder")
    result = printed(seen.action)
    if result is None:
        return Judged(2, f"no value: {_ending(seen.action)}", "coder")
    return _lab_result(seen, result)


def _lab_result(seen: Seen, result: Fraction) -> Judged:
    """A program that printed a number, held against the plan it was given."""
    plan = arithmetic.value(seen.said("solver") or "")
    right = None if seen.key is None else arithmetic.number(seen.key.answer)
    if right is not None and result == right:
        return Judged(10, "prints the right value")
    if plan is None:
        return Judged(5, "runs, but there was no plan to follow", "solver")
    if result == plan:
        return Judged(10, "prints the plan's value", None if right is None else "solver")
    return Judged(3, "prints another value than the plan's", "coder")


def _lab_stop(seen: Seen) -> Judged:
    """A later turn without a program: right where the last one did its job."""
    last = seen.ran()
    result = printed(last)
    if last is None or result is None:
        return Judged(1, "gives up on a program that printed no value", "coder")
    if _lab_result(seen, result).value < 5:
        return Judged(3, "leaves a value that is not the plan's", "coder")
    return Judged(10, "stops on a value")


def _lab_verifier(seen: Seen) -> Judged:
    box = arithmetic.boxed(seen.action.text)
    answer = None if box is None else arithmetic.number(box)
    result = printed(seen.ran())
    right = None if seen.key is None else arithmetic.number(seen.key.answer)
    if right is not None and answer == right:
        return Judged(10, "the right answer")
    if result is None:
        if answer is None and box is None:
            return Judged(4, "no answer where there was no result", "coder")
        return Judged(1, "an answer that nothing it saw supports", "verifier")
    if answer is None:
        named = arithmetic.last_number(seen.action.text) == result
        return Judged(2 if named else 0, "no number in a box", "verifier")
    if answer != result:
        return Judged(1, "not the tool's result", "verifier")
    return Judged(9, "reports the tool's result") if right is None else Judged(8, "reports a wrong result", "coder")


def _math_solver(seen: Seen) -> Judged:
    text = seen.action.text
    answer = _answer(text)
    if answer is None:
        return Judged(1, "comes to no answer", "solver")
    if seen.key is not None and answer == arithmetic.number(seen.key.answer):
        return Judged(10, "the right answer")
    if seen.action.finish_reason == "length" and arithmetic.boxed(text) is None:
        return Judged(2, "cut off before an answer", "solver")
    calculations = _calculations(text)
    if wrong := next((said for said, holds in calculations if not holds), None):
        return Judged(3, f"miscalculates: {wrong}", "solver")
    whole = _numbers(seen.episode.problem.prompt) <= _numbers(text)
    if seen.key is not None:
        return Judged(4 if whole else 3, "a wrong answer", "solver")
    if not whole:
        return Judged(5, "comes to an answer without all of the problem's numbers")
    return Judged(8, "a calculation that holds") if calculations else Judged(7, "comes to an answer")


def _math_coder(seen: Seen) -> Judged:
    if seen.action.execution is None:
        return _math_stop(seen)
    result = printed(seen.action)
    if result is None:
        return Judged(3, f"no value: {_ending(seen.action)}", "coder")
    return _math_result(seen, seen.action, result)


def _math_result(seen: Seen, ran: Action, result: Fraction) -> Judged:
    """A program that printed a number: whether it computed it, from what, and what the Solver came to."""
    handed = _answer(seen.said("solver") or "")
    if seen.key is not None:
        if result == arithmetic.number(seen.key.answer):
            return Judged(10, "prints the right value")
        return Judged(6, "prints the Solver's wrong value", "solver") if result == handed else _wrong(4, "coder")
    numbers = _numbers(python_code(ran.text) or "")
    if numbers <= {result}:
        return Judged(4, "prints a number that it did not compute", "coder")
    if not _numbers(seen.episode.problem.prompt) <= numbers:
        return Judged(5, "computes without all of the problem's numbers")
    return Judged(9, "confirms the Solver's answer") if result == handed else Judged(7, "computes another value")


def _math_stop(seen: Seen) -> Judged:
    """A turn without a program."""
    if seen.action.turn == 0:
        begun = "```python" in seen.action.text
        return Judged(2, "a program that does not end", "coder") if begun else Judged(1, "no program", "coder")
    last = seen.ran()
    result = printed(last)
    if last is None or result is None:
        return Judged(1, "gives up on a program that printed no value", "coder")
    judged = _math_result(seen, last, result)
    return Judged(min(9, judged.value), f"stops: {judged.reason}", judged.blame)


def _math_verifier(seen: Seen) -> Judged:
    box, result = arithmetic.boxed(seen.action.text), printed(seen.ran())
    if box is None:
        named = None if seen.action.finish_reason == "length" else arithmetic.last_number(seen.action.text)
        return Judged(0 if named is None else 3 if named == result else 1, "no boxed answer", "verifier")
    if seen.key is not None and _same(box, seen.key.answer):
        return Judged(10, "the right answer")
    if result is None:
        return Judged(5, "an answer without a result to check it by") if seen.key is None else _wrong(2, "verifier")
    if arithmetic.number(box) != result:
        return Judged(2, "not the tool's result", "verifier")
    return Judged(9, "reports the tool's result") if seen.key is None else Judged(7, "reports a wrong result", "coder")


def _calculations(text: str) -> list[tuple[str, bool]]:
    """What `text` writes as expression = number, and whether it holds as rounded; what can't be read is left out."""
    plain = re.sub(r"\\times|\\cdot|×|(?<=[\d)]) ?x ?(?=[\d(])", "*", text).replace("\\div", "/")
    found: list[tuple[str, bool]] = []
    for match in _CALCULATION.finditer(plain):
        if plain[: match.start()].rstrip(" $").endswith(tuple("+-*/=")):
            continue  # the end of a longer one: 6 boxes * 3 - 2 = 16
        worth, said = arithmetic.value(match[1]), arithmetic.number(match[2])
        if worth is not None and said is not None and re.search(r"\d\s*[-+*/]", match[1]):
            decimals = len(match[2].partition(".")[2])
            off = Fraction(1, 2 * 10**decimals) if decimals else 0
            found.append((" ".join(match[0].split())[:80], abs(worth - said) <= off))
    return found


def _numbers(text: str) -> set[Fraction]:
    """The different numbers written in `text`."""
    found = (arithmetic.number(n) for n in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", text))
    return {n for n in found if n is not None}


def _wrong(value: float, role: str) -> Judged:
    return Judged(value, "a wrong answer", role)


def _same(answer: str, reference: str) -> bool:
    """Equal as numbers, or, where they are none, as text."""
    ours, theirs = arithmetic.number(answer), arithmetic.number(reference)
    return ours == theirs if theirs is not None else answer.strip() == reference.strip()


def _answer(text: str) -> Fraction | None:
    """What a text comes to: its boxed number, else the last number in it."""
    box = arithmetic.boxed(text)
    return arithmetic.last_number(text) if box is None else arithmetic.number(box)


def _ending(action: Action) -> str:
    """How an action's code ended, in a few words."""
    execution = action.execution
    assert execution is not None
    lines = execution.stderr.strip().splitlines()
    return "nothing printed" if execution.status == "ok" else lines[-1][:100] if lines else execution.status


RULES: dict[tuple[str, str], Rule] = {
    ("lab", "solver"): _lab_solver,
    ("lab", "coder"): _lab_coder,
    ("lab", "verifier"): _lab_verifier,
    ("math", "solver"): _math_solver,
    ("math", "coder"): _math_coder,
    ("math", "verifier"): _math_verifier,
}
