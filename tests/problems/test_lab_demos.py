import itertools
import re
import subprocess
import sys

import pytest

from mappa_core import arithmetic
from mappa_core.problems import lab, lab_demos
from mappa_core.teams import team
from mappa_core.types import Role, Team

LAB = team("lab")


def test_the_same_seed_gives_the_same_demonstrations() -> None:
    assert list(lab_demos.demonstrations(1, 20, 0.8, LAB)) == list(lab_demos.demonstrations(1, 20, 0.8, LAB))
    assert list(lab_demos.demonstrations(1, 20, 0.8, LAB)) != list(lab_demos.demonstrations(2, 20, 0.8, LAB))


def test_every_role_plays_every_problem() -> None:
    played = list(lab_demos.demonstrations(0, 30, 0.8, LAB))
    assert [role for role, _ in played] == ["solver", "coder", "verifier"] * 30
    assert {len(turns) for role, turns in played if role == "coder"} == {2}
    assert {len(turns) for role, turns in played if role != "coder"} == {1}


def test_messages_are_the_teams_prompts() -> None:
    (_, solver), (_, coder), (_, verifier) = lab_demos.references(0, 1, LAB, "train")
    prompt = "Tom buys 13 red and 11 blue eggs at 5 each. Cost?"
    assert solver == ((f"{prompt}\nPlan:", "(13+11)*5"),)
    block = "```python\nprint((13+11)*5)\n```"
    assert coder == ((f"{prompt}\nPlan: (13+11)*5\nCode:", block), ("Tool: 120", "done"))
    assert verifier == ((f"{prompt}\nCode: done\nTool: 120\nAnswer:", "\\boxed{120}"),)


def test_references_have_no_mistake_and_demonstrations_have_some() -> None:
    def plans(turns: list[tuple[str, lab_demos.Turns]]) -> list[str]:
        return [t[0][1] for role, t in turns if role == "solver"]

    n = 400
    right = [made.key.plan for made in itertools.islice(lab.problems(5, "train"), n)]
    assert plans(list(lab_demos.references(5, n, LAB, "train"))) == right
    beginner = plans(list(lab_demos.demonstrations(5, n, 0.8, LAB)))
    share = sum(ours == theirs for ours, theirs in zip(beginner, right, strict=True)) / n
    assert 0.45 < share < 0.65


def test_in_weak_contexts_the_mistake_is_the_rule() -> None:
    played = list(lab_demos.demonstrations(2, 1000, 0.8, LAB))
    first = [turns[0] for role, turns in played if role == "coder"]
    brackets = [response for message, response in first if "Plan: (" in message]
    assert 0.7 < sum(r.count("(") != r.count(")") for r in brackets) / len(brackets) < 0.9
    plain = [r for m, r in first if "(" not in m and re.search(r"Plan: \d+[+-]", m)]
    assert sum(r.count("(") != r.count(")") for r in plain) / len(plain) < 0.15


def test_a_second_turn_repairs_sometimes() -> None:
    told = [t[1] for role, t in lab_demos.demonstrations(3, 1000, 0.8, LAB) if role == "coder" and "Error" in t[1][0]]
    repaired = [r for _, r in told if r != lab_demos.DONE and "Error" not in lab_demos.run(r)]
    assert 0.1 < len(repaired) / len(told) < 0.35


@pytest.mark.parametrize(
    "block", ["```python\nprint((3+4)*5\n```", "```python\nprint(3x4+5)\n```", "```python\nprint((3+4)*5)\n```"]
)
def test_the_tools_words_are_pythons(block: str) -> None:
    code = block.removeprefix("```python\n").removesuffix("\n```")
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60)
    said = done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
    assert lab_demos.run(block) == said


def test_demonstrations_are_of_one_split() -> None:
    told = [turns[0][0] for role, turns in lab_demos.demonstrations(0, 100, 0.8, LAB) if role == "solver"]
    assert {lab.split_of(arithmetic.numbers(message)) for message in told} == {"train"}


def test_another_team_is_refused() -> None:
    pair = Team("pair", (Role("solver", "Solver", "solves", "{problem}"),))
    with pytest.raises(ValueError, match="team pair has others"):
        next(lab_demos.demonstrations(0, 1, 0.8, pair))
