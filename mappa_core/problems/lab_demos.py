"""Demonstrations of the lab team for the base's warm start: how a beginner plays each role, mistakes included.

In *weak contexts* the mistake is the rule (chance `weakness`), so that a trained base gets them wrong even when it
picks its likeliest answer; elsewhere it is an occasional slip. What there is to learn is judgement, not format:
  solver    drops the brackets or adds instead of taking away, on five templates
  coder     forgets the last bracket where the plan has brackets, writes x for * where * comes first; told so, gives up
  verifier  does not box an answer of one digit or three, and boxes 0 after an error
Python's own parser words the tool's errors. Refused: a team whose roles are not the lab's.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from typing import NamedTuple

from mappa_core import arithmetic
from mappa_core.problems import lab
from mappa_core.types import Problem, Role, Team

SLIP = 0.08
"""Chance of a mistake outside the weak contexts."""
OWN_PLAN = 0.5
"""Share of coder and verifier demonstrations that start from the right plan whatever the weakness, so that the base can
copy what later becomes common."""
DONE = "done"
NOTHING = "no result"
ROLES = ("solver", "coder", "verifier")

Turns = tuple[tuple[str, str], ...]
"""(message, response) of each turn."""


class Beginner(NamedTuple):
    """How often mistakes are made: in weak contexts and elsewhere."""

    weakness: float
    slip: float


def demonstrations(
    seed: int, n: int, weakness: float, team: Team, split: lab.Split = "train"
) -> Iterator[tuple[str, Turns]]:
    """`n` problems of `split`, each played by every role: (role, turns), turn 0 first. ValueError for another team."""
    return _play(seed, n, Beginner(weakness, SLIP), team, split)


def references(seed: int, n: int, team: Team, split: lab.Split = "selection") -> Iterator[tuple[str, Turns]]:
    """The same without a mistake: what the ceiling of a base is measured on."""
    return _play(seed, n, Beginner(0.0, 0.0), team, split)


def phrases() -> list[str]:
    """What the team's members and the tool say beside problems, plans and numbers: for the vocabulary."""
    said = [program("2"), DONE, NOTHING, "The answer is 2", "\\boxed{2}"]
    return said + [run(bad) for bad in (_unclosed("(2+2)*2"), _crossed("2*2"), "print((2)x2)", "print(2")]


def program(plan: str) -> str:
    """The coder's block for a plan."""
    return f"```python\nprint({plan})\n```"


def run(block: str) -> str:
    """What the tool answers to a coder's block of this module's kind: the value, or Python's words for the error."""
    code = block.removeprefix("```python\n").removesuffix("\n```")
    try:
        ast.parse(code)
    except SyntaxError as error:
        return f"SyntaxError: {error.msg}"
    worth = arithmetic.value(code.removeprefix("print(").removesuffix(")"))
    if worth is None:
        raise ValueError(f"a demonstration prints no value: {code!r}")
    return str(worth)


def _play(seed: int, n: int, beginner: Beginner, team: Team, split: lab.Split) -> Iterator[tuple[str, Turns]]:
    if tuple(role.name for role in team.roles) != ROLES:
        raise ValueError(f"demonstrations are for roles {', '.join(ROLES)}; team {team.name} has others")
    rng = random.Random(f"lab-demos/{seed}")
    stream = lab.problems(seed, split)
    for _ in range(n):
        made = next(stream)
        plan = _solve(made, beginner, rng)
        yield "solver", ((_fill(team.role("solver"), made.problem), plan),)
        assert made.key.plan is not None
        given = made.key.plan if rng.random() < OWN_PLAN else plan
        turns, tool = _code(made.problem, given, beginner, team.role("coder"), rng)
        yield "coder", turns
        yield "verifier", (_verify(made.problem, turns[-1][1], tool, beginner, team.role("verifier"), rng),)


def _solve(made: lab.LabProblem, beginner: Beginner, rng: random.Random) -> str:
    assert made.key.plan is not None
    if made.slip is not None and rng.random() < beginner.weakness:
        return made.slip
    if rng.random() < beginner.slip:
        return _misread(made.key.plan, rng)
    return made.key.plan


def _misread(plan: str, rng: random.Random) -> str:
    """`plan` with one operator replaced."""
    at = rng.choice([i for i, c in enumerate(plan) if c in "+-*"])
    return plan[:at] + rng.choice([c for c in "+-*" if c != plan[at]]) + plan[at + 1 :]


def _code(problem: Problem, plan: str, beginner: Beginner, role: Role, rng: random.Random) -> tuple[Turns, str]:
    """The coder's two turns, and the last answer of the tool."""
    first = _write(plan, beginner, rng)
    answer = run(first)
    second = _react(plan, first, answer, beginner, rng)
    turns = ((_fill(role, problem, solver=plan), first), (role.follow_up.replace("{tool}", answer), second))
    return turns, answer if second == DONE else run(second)


def _write(plan: str, beginner: Beginner, rng: random.Random) -> str:
    brackets, times_first = "(" in plan, re.match(r"\(?\d+\*", plan) is not None
    if brackets and rng.random() < beginner.weakness:
        return _unclosed(plan)
    if times_first and rng.random() < beginner.weakness:
        return _crossed(plan)
    if rng.random() < beginner.slip:
        return _unclosed(plan)
    return program(plan)


def _react(plan: str, first: str, answer: str, beginner: Beginner, rng: random.Random) -> str:
    """Turn 1: the end, or another block. After an error a beginner gives up or writes the same again."""
    if not answer.startswith("SyntaxError"):
        return program(plan) if rng.random() < beginner.slip else DONE
    if rng.random() < beginner.weakness:
        return DONE if rng.random() < 0.6 else first
    return program(plan)


def _verify(
    problem: Problem, code: str, tool: str, beginner: Beginner, role: Role, rng: random.Random
) -> tuple[str, str]:
    message = _fill(role, problem, coder=code, tool=tool)
    if tool.startswith("SyntaxError"):
        return message, "\\boxed{0}" if rng.random() < beginner.weakness else NOTHING
    chance = beginner.slip if len(tool) == 2 else beginner.weakness
    return message, f"The answer is {tool}" if rng.random() < chance else f"\\boxed{{{tool}}}"


def _unclosed(plan: str) -> str:
    return f"```python\nprint({plan}\n```"


def _crossed(plan: str) -> str:
    return program(plan.replace("*", "x", 1))


def _fill(role: Role, problem: Problem, solver: str = "", coder: str = "", tool: str = "") -> str:
    """A role's first message, filled in one pass."""
    said = {"problem": problem.prompt, "solver.text": solver, "coder.text": coder, "coder.tool": tool}
    return re.sub(r"\{([a-z.]+)\}", lambda match: said[match.group(1)], role.prompt)
