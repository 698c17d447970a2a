"""Grades mathematical answers: exact integers first, then math-verify in a process that is killed when it hangs.

Deterministic, and never in the caller's process: `5^(5^(5^5))` must cost seconds, not a run. What is overlooked is a
closed list, `normalised`; what can't be read as mathematics is wrong, and says why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mappa_core.graders.math_process import Process
from mappa_core.types import Action, Episode, Key, Outcome

OUTCOME_TIMEOUT_S = 10.0
"""Of one comparison of an episode's answer."""
_BOX = re.compile(r"\\boxed\s*\{")
_WRAPPED = re.compile(r"\$\$(.*)\$\$|\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]", re.DOTALL)
_DEGREES = re.compile(r"\s*(?:\^\s*\\circ|\^\s*\{\s*\\circ\s*\}|\\degree|\u00b0)$")
_PERCENT = re.compile(r"\s*\\?%$")
_INTEGER = re.compile(r"[+-]?\d+(?:\.0*)?")
_GROUPED = re.compile(r"([+-]?\d{1,3}(?:,\d{3})+)(\.0*)?")
_LONGEST = 1000
"""Characters of an answer; no answer of a contest is longer."""
_process = Process()


@dataclass(frozen=True, slots=True)
class Grade:
    """Whether an answer equals a reference; `value` is how the answer was read, None where it could not be."""

    success: bool
    value: str | None
    why: str


def grade(answer: str, reference: str, timeout_s: float) -> Grade:
    """Whether `answer` (an expression, or a text whose last box holds it) equals `reference`, an expression.

    Integers are compared as integers, all else by math-verify (numbers to six decimals, sets without order, "x = 5" as
    5). ValueError: the reference can't be read.
    """
    right = normalised(reference)
    if not right:
        raise ValueError(f"reference {reference!r} is empty; give the right answer")
    given = boxed(answer) if "\\boxed" in answer else answer
    if given is None:
        return Grade(False, None, "no balanced \\boxed{} in the answer")
    given = normalised(given)
    if not given:
        return Grade(False, None, "the answer is empty")
    if len(given) > _LONGEST:
        return Grade(False, None, f"the answer is {len(given)} characters long")
    whole, right_whole = integer(given), integer(right)
    if whole is not None and right_whole is not None:
        return Grade(whole == right_whole, str(whole), _why(whole == right_whole, str(whole), str(right_whole)))
    return _by_math_verify(given, right, reference, timeout_s)


def outcome(episode: Episode, key: Key) -> Outcome:
    """Success: the Verifier's last output boxes the key's answer. ValueError: another problem's key, or unreadable.

    Facts: `verifier/boxed` where it acted; `coder/used_tool` where it acted, and where it did `coder/ran`: its last
    program ended well.
    """
    if key.problem != episode.problem.id:
        raise ValueError(f"episode {episode.id} is graded with the key of {key.problem}; join keys by problem id")
    verifier = episode.last("verifier")
    box = None if verifier is None else boxed(verifier.text)
    facts: dict[str, float] = {} if verifier is None else {"verifier/boxed": float(box is not None)}
    facts |= _coder_facts([a for a in episode.actions if a.role == "coder"])
    if verifier is None:
        return Outcome(episode.id, False, "the Verifier did not act", facts)
    if box is None:
        return Outcome(episode.id, False, "no balanced \\boxed{} in the Verifier's last output", facts)
    found = grade(box, key.answer, OUTCOME_TIMEOUT_S)
    return Outcome(episode.id, found.success, found.why, facts)


def boxed(text: str) -> str | None:
    """What the last box with balanced braces holds; None where there is no such box."""
    for start in reversed([m.end() for m in _BOX.finditer(text)]):
        depth, at = 1, start
        while at < len(text) and depth:
            if text[at] == "\\":
                at += 1  # an escaped brace is a character
            else:
                depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        if not depth:
            return text[start : at - 1]
    return None


def normalised(text: str) -> str:
    r"""An expression without what never matters here.

    In this order: white space around it, a full stop after it, one pair of $ $, $$ $$, \( \) or \[ \] around it,
    a full stop in there, a degree sign after it, a percent sign after it (50\% is 50, not 0.5), a dollar sign (\$)
    before it. The bare word pi is \pi.
    """
    text = text.strip().removesuffix(".").rstrip()
    wrapped = _WRAPPED.fullmatch(text)
    if wrapped:
        text = next(group for group in wrapped.groups() if group is not None).strip()
    text = text.removesuffix(".").rstrip()
    text = _PERCENT.sub("", _DEGREES.sub("", text))
    text = text.removeprefix("\\$").lstrip()
    return re.sub(r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi", text)


def integer(text: str) -> int | None:
    """The integer that a normalised text writes in digits: 70, 070, +70, -3, 1,234, 1{,}234, 70.0; else None."""
    text = text.replace("{,}", ",").replace("\\!", "").replace("\\,", "").replace("\u2212", "-")
    grouped = _GROUPED.fullmatch(text)
    if grouped:
        text = grouped[1].replace(",", "")
    return int(text.partition(".")[0]) if _INTEGER.fullmatch(text) and text.isascii() else None


def _by_math_verify(given: str, right: str, reference: str, timeout_s: float) -> Grade:
    read = _process.ask(None, right, timeout_s)
    if read is None or read.reference is None:
        raise ValueError(f"reference {reference!r} can't be read as LaTeX mathematics; correct the key")
    compared = _process.ask(given, right, timeout_s)
    if compared is None:
        return Grade(False, None, f"the answer could not be evaluated within {timeout_s:g} s")
    if compared.answer is None:
        return Grade(False, None, f"the answer {given[:80]!r} can't be read as LaTeX mathematics")
    return Grade(compared.equal, compared.answer, _why(compared.equal, compared.answer, read.reference))


def _why(success: bool, value: str, right: str) -> str:
    return f"{value} equals {right}" if success else f"{value} is not {right}"


def _coder_facts(actions: list[Action]) -> dict[str, float]:
    if not actions:
        return {}
    executions = [a.execution for a in actions if a.execution is not None]
    facts = {"coder/used_tool": float(bool(executions))}
    if executions:
        facts["coder/ran"] = float(executions[-1].status == "ok")
    return facts
