import pytest

from mappa_core.graders import lab
from mappa_core.types import Action, Episode, Execution, Key, Outcome, Problem

KEY = Key("p", "35", "(3+4)*5")
PROBLEM = Problem("p", "lab", "Ann buys 3 red and 4 blue pens at 5 each. Cost?")


def action(role: str, turn: int, text: str, printed: str | None = None, error: str = "") -> Action:
    ran = None
    if printed is not None or error:
        status = "error" if error else "ok"
        ran = Execution(status, 1 if error else 0, None, printed or "", error)
    return Action(f"p#0/{role}/{turn}", role, turn, 0, (1,), (2,), (0.0,), text, "stop", "w", ran)


def graded(*actions: Action) -> Outcome:
    return lab.grade(Episode("p#0", PROBLEM, 0, actions), KEY)


def test_all_went_well() -> None:
    outcome = graded(
        action("solver", 0, "(3+4)*5"),
        action("coder", 0, "```python\nprint((3+4)*5)\n```", "35\n"),
        action("coder", 1, "done"),
        action("verifier", 0, "\\boxed{35}"),
    )
    assert outcome.success
    assert outcome.metrics == {"solver/plan_right": 1, "coder/runs": 1, "coder/agrees": 1, "verifier/faithful": 1}


def test_a_wrong_plan_carried_out_faithfully() -> None:
    outcome = graded(
        action("solver", 0, "3+4*5"), action("coder", 0, "...", "23\n"), action("verifier", 0, "\\boxed{23}")
    )
    assert not outcome.success
    assert outcome.why == "23 is not 35"
    assert outcome.metrics == {"solver/plan_right": 0, "coder/runs": 1, "coder/agrees": 1, "verifier/faithful": 1}


def test_after_an_error_there_is_nothing_to_be_faithful_to() -> None:
    outcome = graded(
        action("solver", 0, "(3+4)*5"),
        action("coder", 0, "...", error="SyntaxError: invalid syntax"),
        action("verifier", 0, "\\boxed{35}"),
    )
    assert outcome.success
    assert outcome.metrics == {"solver/plan_right": 1, "coder/runs": 0, "coder/agrees": 0}


def test_the_repaired_program_counts() -> None:
    outcome = graded(
        action("solver", 0, "(3+4)*5"),
        action("coder", 0, "...", error="SyntaxError: invalid syntax"),
        action("coder", 1, "...", "35\n"),
        action("verifier", 0, "The answer is 35"),
    )
    assert not outcome.success
    assert outcome.why == "no number in a box"
    assert outcome.metrics == {"solver/plan_right": 1, "coder/runs": 1, "coder/agrees": 1, "verifier/faithful": 0}


def test_the_right_value_by_other_numbers_is_not_the_plan() -> None:
    assert graded(action("solver", 0, "30+5")).metrics == {"solver/plan_right": 0}


def test_a_plan_that_is_none() -> None:
    outcome = graded(action("solver", 0, "five"), action("coder", 0, "...", "35\n"))
    assert outcome.metrics == {"solver/plan_right": 0, "coder/runs": 1}


def test_the_number_counts_not_its_spelling() -> None:
    assert graded(action("verifier", 0, "\\boxed{ 35.0 }")).success
    assert not graded(action("verifier", 0, "\\boxed{35} \\boxed{36}")).success


def test_the_wrong_key_is_refused() -> None:
    with pytest.raises(ValueError, match="key of q"):
        lab.grade(Episode("p#0", PROBLEM, 0, ()), Key("q", "35"))


def test_the_gate_lets_a_good_base_through() -> None:
    lab.check_base(success=0.10, plan_right=0.65, ceiling=0.9)


@pytest.mark.parametrize(
    ("success", "plan_right", "ceiling", "message"),
    [
        (0.09, 0.5, 0.95, "team success is 0.09, not 0.1 to 0.35"),
        (0.36, 0.5, 0.95, "team success is 0.36"),
        (0.2, 0.34, 0.95, "plan right is 0.34, not 0.35 to 0.65"),
        (0.2, 0.5, 0.89, "digits copied is 0.89"),
        (0.2, 0.5, float("nan"), "digits copied is nan"),
    ],
)
def test_the_gate_says_what_is_off(success: float, plan_right: float, ceiling: float, message: str) -> None:
    with pytest.raises(lab.BaseError, match=message):
        lab.check_base(success, plan_right, ceiling)
