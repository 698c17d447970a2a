import itertools
import json
from collections import Counter

import pytest

from mappa_core import arithmetic
from mappa_core.graders.math import grade
from mappa_core.problems import words


def test_the_same_seed_makes_the_same_problems() -> None:
    assert words.generate(3, 50, 20, 20) == words.generate(3, 50, 20, 20)
    assert words.generate(3, 50, 20, 20).train.problems != words.generate(4, 50, 20, 20).train.problems


def test_splits_share_neither_statements_nor_numbers() -> None:
    """Invariant 13: no problem of one split has the numbers of a problem of another, in any order."""
    splits = words.generate(0)
    numbers = [{tuple(arithmetic.numbers(k.plan or "")) for k in rows.keys} for rows in splits]
    statements = [{p.prompt for p in rows.problems} for rows in splits]
    assert min(map(len, numbers)) > 50
    for a, b in itertools.combinations(range(3), 2):
        assert not numbers[a] & numbers[b]
        assert not statements[a] & statements[b]


def test_problems_are_different_and_balanced() -> None:
    train, selection, report = words.generate(0)
    assert [len(rows.problems) for rows in (train, selection, report)] == [1024, 200, 400]
    everything = [p for rows in (train, selection, report) for p in rows.problems]
    assert len({p.id for p in everything}) == len({p.prompt for p in everything}) == 1624
    assert all(p.kind == "math" and p.id.startswith("words-") for p in everything)
    counts = Counter(p.stratum for p in selection.problems)
    assert set(counts) == {s.name for s in words.STORIES}
    assert max(counts.values()) - min(counts.values()) <= 3


def test_every_wording_of_every_story_is_used_and_filled() -> None:
    rows = words.rows(0, "train", 1024)
    assert not any(set("{}") & set(p.prompt) for p in rows.problems)
    starts = Counter((p.stratum, wording) for p in rows.problems for wording in _matching(p.stratum, p.prompt))
    assert len(starts) == 3 * len(words.STORIES)


def _matching(name: str, prompt: str) -> list[str]:
    """The wordings of which all fixed text is in `prompt`, in order."""
    (story,) = (s for s in words.STORIES if s.name == name)
    found: list[str] = []
    for wording in story.wordings:
        pieces = [piece.partition("}")[2] if "}" in piece else piece for piece in wording.split("{")]
        at = 0
        for piece in pieces:
            at = prompt.find(piece, at) + len(piece) if prompt.find(piece, at) >= 0 else len(prompt) + 1
        if at <= len(prompt):
            found.append(wording)
    return found


def test_a_key_is_its_problems_answer_by_two_or_three_operations() -> None:
    rows = words.rows(1, "train", 200)
    for problem, key in zip(rows.problems, rows.keys, strict=True):
        assert key.problem == problem.id
        assert key.plan is not None
        assert sum(key.plan.count(sign) for sign in "+-*/") in (2, 3)
        assert arithmetic.value(key.plan) == int(key.answer)
        assert 1 < int(key.answer) <= words.LARGEST
        figures = "".join(c if c.isdigit() else " " for c in problem.prompt).split()
        assert sorted(map(int, figures)) == arithmetic.numbers(key.plan)
        assert key.plan not in json.dumps([problem.prompt, problem.stratum])
        assert grade(f"so \\boxed{{{key.answer}}}", key.answer, timeout_s=5).success


def test_nobody_gives_away_more_than_there_is() -> None:
    for key in words.rows(2, "train", 800).keys:
        plan = key.plan or ""
        if plan.count("-") == 1 and "+" in plan.partition("-")[2]:
            left = plan[: plan.index("+", plan.index("-"))]
            assert (arithmetic.value(left) or 0) > 0, plan


def test_a_split_that_is_too_small_says_so() -> None:
    with pytest.raises(ValueError, match=r"words/report has no 1 different problems; ask for at most 0"):
        words.first_different(iter([]), "report", 1)


def test_a_problem_by_hand() -> None:
    problem, key = next(words.problems(0, "train"))
    assert (
        problem.prompt
        == "Tara buys 19 books for 10 dollars each and a bag for 20 dollars. How many dollars does Tara spend?"
    )
    assert (key.plan, key.answer) == ("19*10+20", "210")
