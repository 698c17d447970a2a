import json
from collections import Counter

import pytest

from mappa_core import arithmetic
from mappa_core.problems import lab


def test_the_same_seed_makes_the_same_problems() -> None:
    assert lab.generate(3, 50, 20, 20) == lab.generate(3, 50, 20, 20)
    assert lab.generate(3, 50, 20, 20).train.problems != lab.generate(4, 50, 20, 20).train.problems


def test_splits_share_no_numbers() -> None:
    """Invariant 13: no problem of one split has the numbers of a problem of another, in any order."""
    numbers = [{tuple(arithmetic.numbers(p.prompt)) for p in rows.problems} for rows in lab.generate(0)]
    train, selection, report = numbers
    assert min(len(train), len(selection), len(report)) > 50
    assert not train & selection
    assert not train & report
    assert not selection & report


def test_problems_are_different_and_balanced() -> None:
    train, selection, report = lab.generate(0)
    assert [len(rows.problems) for rows in (train, selection, report)] == [1024, 200, 400]
    assert len({p.prompt for p in train.problems}) == len({p.id for p in train.problems}) == 1024
    counts = Counter(p.stratum for p in selection.problems)
    assert set(counts) == {t.name for t in lab.TEMPLATES}
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_key_is_its_problems_answer() -> None:
    rows = lab.rows(1, "train", 100)
    for problem, key in zip(rows.problems, rows.keys, strict=True):
        assert key.problem == problem.id
        assert key.plan is not None
        assert arithmetic.value(key.plan) == arithmetic.number(key.answer)
        assert arithmetic.numbers(key.plan) == arithmetic.numbers(problem.prompt)
        assert int(key.answer) > 0
        assert key.plan not in json.dumps([problem.prompt, problem.stratum])


def test_a_trap_changes_the_answer() -> None:
    stream = lab.problems(0, "train")
    slips = [made for made, _ in zip(stream, range(300), strict=False) if made.slip is not None]
    assert len(slips) == 150
    assert all(arithmetic.value(m.slip or "") != arithmetic.number(m.key.answer) for m in slips)


def test_a_split_that_is_too_small_says_so() -> None:
    with pytest.raises(ValueError, match=r"lab/report has no 1 different problems; ask for at most 0"):
        lab.first_different(iter([]), "report", 1)


def test_a_problem_by_hand() -> None:
    made = next(lab.problems(0, "train"))
    assert made.problem.prompt == "Tom buys 13 red and 11 blue eggs at 5 each. Cost?"
    assert (made.key.plan, made.key.answer, made.slip) == ("(13+11)*5", "120", "13+11*5")
