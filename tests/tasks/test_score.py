import pytest

from mappa_core.config import RubricCoach
from mappa_core.types import Action, Episode, Problem, Scored, Unscored, Verdict
from tasks.score import ScoreError, Scoring, check_unscored


def episode(name: str) -> Episode:
    action = Action(f"{name}/solver/0", "solver", 0, 0, (1,), (2,), (0.0,), "x", "stop", "d")
    return Episode(name, Problem(name, "lab", "?"), 0, (action,))


def ask(asked: Episode) -> list[Verdict]:
    return [Scored(a.id, 7.0, "fine") for a in asked.actions]


def test_verdicts_come_in_the_order_of_episodes_whatever_was_put_first() -> None:
    with Scoring(ask) as scoring:
        scoring.put(episode("b"))
        verdicts = scoring.verdicts([episode("a"), episode("b")])
    assert [v.action for v in verdicts] == ["a/solver/0", "b/solver/0"]


def test_an_episode_that_was_put_is_asked_once() -> None:
    asked: list[str] = []

    def count(one: Episode) -> list[Verdict]:
        asked.append(one.id)
        return ask(one)

    with Scoring(count) as scoring:
        scoring.put(episode("a"))
        scoring.verdicts([episode("a")])
    assert asked == ["a"]


def test_an_error_of_the_coach_is_raised_not_scored() -> None:
    def broken(_: Episode) -> list[Verdict]:
        raise RuntimeError("no coach")

    with Scoring(broken) as scoring:
        scoring.put(episode("a"))
        with pytest.raises(RuntimeError, match="no coach"):
            scoring.verdicts([episode("a")])


def test_too_many_unscored_actions_fail_the_step_with_their_cause() -> None:
    coach = RubricCoach.model_validate({"unscored_limit": 0.2})
    few: list[Verdict] = [Unscored("a", "dead"), *[Scored(str(i), 5.0, "") for i in range(4)]]
    check_unscored(few, coach)
    with pytest.raises(ScoreError, match=r"2 of 6 actions are unscored.*dead"):
        check_unscored([*few, Unscored("b", "dead")], coach)
