import json
import subprocess
import sys
from dataclasses import replace

import pytest

from mappa_core.coach.rubric import RubricCoach
from mappa_core.types import Action, Episode, Execution, Key, Problem, Scored, Unscored

KEY = Key("p", "35", "(3+4)*5")
PROBLEM = Problem("p", "lab", "Ann buys 3 red and 4 blue pens at 5 each. Cost?")
ERROR = 'File "x.py", line 1\nSyntaxError: invalid syntax'


def action(role: str, turn: int, text: str, printed: str | None = None, error: str = "") -> Action:
    ran = None
    if printed is not None or error:
        ran = Execution("error" if error else "ok", 1 if error else 0, None, printed or "", error)
    return Action(f"p#0/{role}/{turn}", role, turn, 0, (1,), (2,), (0.0,), text, "stop", "w", ran)


def episode(*actions: Action, kind: str = "lab") -> Episode:
    return Episode("p#0", replace(PROBLEM, kind=kind), 0, actions)


def scores(told: Episode, sees_answer: bool, key: Key | None = KEY) -> list[float]:
    verdicts = RubricCoach(sees_answer)(told, key)
    assert [v.action for v in verdicts] == [a.id for a in told.actions]
    return [v.value for v in verdicts if isinstance(v, Scored)]


def last(told: Episode, sees_answer: bool) -> Scored:
    verdict = RubricCoach(sees_answer)(told, KEY)[-1]
    assert isinstance(verdict, Scored)
    return verdict


RIGHT = (action("solver", 0, "(3+4)*5"), action("coder", 0, "...", "35\n"), action("coder", 1, "done"))
WRONG = (action("solver", 0, "3+4*5"), action("coder", 0, "...", "23\n"), action("coder", 1, "done"))
FAILED = (action("solver", 0, "(3+4)*5"), action("coder", 0, "...", error=ERROR), action("coder", 1, "done"))


def test_all_went_well() -> None:
    assert scores(episode(*RIGHT, action("verifier", 0, "\\boxed{35}")), sees_answer=True) == [10, 10, 10, 10]
    assert scores(episode(*RIGHT, action("verifier", 0, "\\boxed{35}")), sees_answer=False) == [8, 10, 10, 9]


def test_a_wrong_plan_is_the_solvers_fault_only() -> None:
    told = episode(*WRONG, action("verifier", 0, "\\boxed{23}"))
    verdicts = [v for v in RubricCoach(True)(told, KEY) if isinstance(v, Scored)]
    assert [v.value for v in verdicts] == [2, 10, 10, 8]
    assert [v.blame for v in verdicts] == ["solver", "solver", None, "coder"]


def test_without_the_answer_a_wrong_plan_looks_like_a_right_one() -> None:
    wrong = scores(episode(*WRONG, action("verifier", 0, "\\boxed{23}")), sees_answer=False)
    assert wrong == scores(episode(*RIGHT, action("verifier", 0, "\\boxed{35}")), sees_answer=False)


def test_without_the_answer_the_key_changes_nothing() -> None:
    told = episode(*WRONG, action("verifier", 0, "\\boxed{35}"))
    assert RubricCoach(False)(told, KEY) == RubricCoach(False)(told, None) == RubricCoach(False)(told, Key("p", "23"))


def test_plans() -> None:
    assert last(episode(action("solver", 0, "a plan")), True).value == 0
    assert last(episode(action("solver", 0, "30+5")), True).value == 6
    assert last(episode(action("solver", 0, "(3+4)*6")), True).value == 1
    assert last(episode(action("solver", 0, "(3+4)*6")), False).value == 2


def test_a_program_that_fails_is_the_coders_fault_and_so_is_giving_up() -> None:
    verdicts = RubricCoach(True)(episode(*FAILED), KEY)
    assert [(v.value, v.blame) for v in verdicts[1:] if isinstance(v, Scored)] == [(2, "coder"), (1, "coder")]
    assert "SyntaxError: invalid syntax" in json.dumps([v.reason for v in verdicts if isinstance(v, Scored)])


@pytest.mark.parametrize("sees_answer", [True, False])
def test_a_repair_is_worth_it(sees_answer: bool) -> None:
    assert last(episode(*FAILED[:2], action("coder", 1, "...", "35\n")), sees_answer).value == 10


@pytest.mark.parametrize("sees_answer", [True, False])
def test_leaving_the_plan_is_the_coders_fault(sees_answer: bool) -> None:
    off = (RIGHT[0], action("coder", 0, "...", "23\n"))
    assert (last(episode(*off), sees_answer).value, last(episode(*off), sees_answer).blame) == (3, "coder")
    assert last(episode(*off, action("coder", 1, "done")), sees_answer).value == 3


def test_mending_a_wrong_plan_is_right_only_for_who_sees_the_answer() -> None:
    mended = episode(WRONG[0], action("coder", 0, "...", "35\n"))
    assert (last(mended, True).value, last(mended, False).value) == (10, 3)


def test_no_program_and_nothing_printed() -> None:
    assert last(episode(RIGHT[0], action("coder", 0, "print it")), True).value == 0
    assert last(episode(RIGHT[0], action("coder", 0, "...", "")), True).value == 2


def test_a_verifier_answers_for_its_own_report() -> None:
    assert last(episode(*RIGHT, action("verifier", 0, "The answer is 35")), False).value == 2
    assert last(episode(*RIGHT, action("verifier", 0, "\\boxed{53}")), False).value == 1
    assert last(episode(*RIGHT, action("verifier", 0, "what?")), False).value == 0


@pytest.mark.parametrize("sees_answer", [True, False])
def test_after_an_error_a_made_up_answer_is_worse_than_none(sees_answer: bool) -> None:
    made_up = last(episode(*FAILED, action("verifier", 0, "\\boxed{12}")), sees_answer)
    honest = last(episode(*FAILED, action("verifier", 0, "no result")), sees_answer)
    assert made_up.value < honest.value < 5
    assert (made_up.blame, honest.blame) == ("verifier", "coder")


def test_what_can_not_be_judged_is_unscored() -> None:
    """Invariant 2: no default."""
    stranger = episode(action("critic", 0, "fine"))
    poem = episode(action("solver", 0, "(3+4)*5"), kind="poem")
    for told, key in ((stranger, KEY), (poem, KEY), (episode(*RIGHT), None)):
        verdicts = RubricCoach(True)(told, key)
        assert len(verdicts) == len(told.actions)
        assert all(isinstance(v, Unscored) and v.cause for v in verdicts)


def test_every_score_is_in_range() -> None:
    texts = ["", "(3+4)*5", "\\boxed{35}", "\\boxed{", "35", "9" * 5000, "```python\n```"]
    coders = [action("coder", 0, t, p, e) for t in texts for p in (None, "", "35", "x" * 5000) for e in ("", ERROR)]
    for kind in ("lab", "math"):
        for sees in (True, False):
            for text, coder in zip(texts * 8, coders, strict=True):
                told = episode(action("solver", 0, text), coder, action("verifier", 0, text), kind=kind)
                assert all(0 <= value <= 10 for value in scores(told, sees))


def math(*actions: Action) -> Episode:
    return episode(*actions, kind="math")


SOLVED = "(3 + 4) * 5 = 35, so \\boxed{35}"
PROGRAM = "```python\nprint((3 + 4) * 5)\n```"


def test_math_all_went_well() -> None:
    told = math(action("solver", 0, SOLVED), action("coder", 0, PROGRAM, "35\n"), action("verifier", 0, "\\boxed{35}"))
    assert scores(told, True) == [10, 10, 10]
    assert scores(told, False) == [8, 9, 9]


def test_math_a_wrong_result_is_the_fault_of_who_made_it() -> None:
    """Nothing that the Coder or the Verifier saw contradicts what they were handed."""
    solver = action("solver", 0, "3 + 4 * 5 = 23, so \\boxed{23}")
    coder = action("coder", 0, "```python\nprint(3 + 4 * 5)\n```", "23\n")
    told = math(solver, coder, action("verifier", 0, "\\boxed{23}"))
    verdicts = [v for v in RubricCoach(True)(told, KEY) if isinstance(v, Scored)]
    assert [v.value for v in verdicts] == [4, 6, 7]
    assert [v.blame for v in verdicts] == ["solver", "solver", "coder"]
    assert scores(told, False) == [8, 9, 9], "without the answer it looks like a right one"


@pytest.mark.parametrize(
    ("text", "blind", "seeing"),
    [
        ("hm", 1, 1),
        ("\\boxed{36}", 5, 3),
        ("3, 4 and 5 make 36", 7, 4),
        ("(3 + 4) * 5 = 36", 3, 3),
        ("3 \\times 4 = 12, 12 + 5 = 17", 8, 4),
        ("3 x 4 = 12, 12 + 5 = 18", 3, 3),
        ("5 / 3 = 1.67, and 4", 8, 4),
        ("5 / 3 = 1.6, and 4", 3, 3),
        ("3 + 4 = 7 * 5 = 35", 8, 10),
        ("3 boxes * 4 - 5 = 7", 7, 4),
        ("3 + $4 - 5 = 2", 7, 4),
    ],
)
def test_math_solvers(text: str, blind: float, seeing: float) -> None:
    told = math(action("solver", 0, text))
    assert (last(told, False).value, last(told, True).value) == (blind, seeing)


def test_math_a_solver_that_was_cut_off_came_to_nothing() -> None:
    cut = replace(action("solver", 0, "(3 + 4) * 5 = 3"), finish_reason="length")
    assert (last(math(cut), True).value, last(math(cut), False).value) == (2, 2)
    boxed = replace(action("solver", 0, SOLVED + " and more"), finish_reason="length")
    assert last(math(boxed), False).value == 8


@pytest.mark.parametrize(
    ("program", "out", "blind", "seeing"),
    [
        ("print((3 + 4) * 5)", "35", 9, 10),
        ("print(35)", "35", 4, 10),
        ("print(3 + 4)", "7", 5, 4),
        ("print(3 + 4 * 5)", "23", 7, 4),
        ("a, b, c = 3, 4, 5\nprint(a)", "", 3, 3),
    ],
)
def test_math_programs(program: str, out: str, blind: float, seeing: float) -> None:
    """Without the answer a program must compute something, from the problem's numbers."""
    told = math(action("solver", 0, SOLVED), action("coder", 0, f"```python\n{program}\n```", out))
    assert (last(told, False).value, last(told, True).value) == (blind, seeing)
    if out:
        stops = math(*told.actions, action("coder", 1, "Done."))
        assert last(stops, False).value == min(9, blind)
        assert last(stops, True).value == min(9, seeing)


def test_math_form() -> None:
    told = math(action("solver", 0, "hm"), action("coder", 0, "no"), action("verifier", 0, "35"))
    assert scores(told, True) == scores(told, False) == [1, 1, 1]
    assert last(math(action("coder", 0, "```python\nprint(3")), False).value == 2
    failed = math(action("solver", 0, "35"), action("coder", 0, "..", error=ERROR), action("coder", 1, "well"))
    assert scores(failed, True)[1:] == [3, 1]


def test_math_verifiers() -> None:
    ran = (action("solver", 0, SOLVED), action("coder", 0, PROGRAM, "35\n"))
    assert last(math(*ran, action("verifier", 0, "It is 35")), False).value == 3
    assert last(math(*ran, action("verifier", 0, "It is 36")), False).value == 1
    assert last(math(*ran, action("verifier", 0, "It is so")), False).value == 0
    assert last(math(*ran, replace(action("verifier", 0, "It is 35"), finish_reason="length")), False).value == 0
    off = last(math(*ran, action("verifier", 0, "\\boxed{36}")), False)
    assert (off.value, off.blame) == (2, "verifier")
    guess = math(ran[0], action("coder", 0, "no"), action("verifier", 0, "\\boxed{36}"))
    assert (last(guess, False).value, last(guess, True).value) == (5, 2)


def test_math_long_text_is_read_in_no_time() -> None:
    for text in ("9" * 20_000, "( " * 10_000, "1 + " * 5_000 + "= 3", "3 x " * 5_000):
        assert 0 <= last(math(action("solver", 0, text)), False).value <= 10


def test_math_answers_that_are_no_numbers_are_compared_as_text() -> None:
    told = math(action("verifier", 0, "\\boxed{\\frac{1}{2}}"))
    assert scores(told, True, Key("p", "\\frac{1}{2}")) == [10]
    assert scores(told, True, Key("p", "\\frac{1}{3}")) == [2]


def test_the_digest_is_of_rules_and_settings() -> None:
    assert RubricCoach(True).digest() == RubricCoach(True).digest()
    assert RubricCoach(True).digest() != RubricCoach(False).digest()
    code = "from mappa_core.coach.rubric import RubricCoach; print(RubricCoach(True).digest())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == RubricCoach(True).digest()
