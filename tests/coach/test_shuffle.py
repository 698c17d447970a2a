import pytest

from mappa_core.coach.shuffle import shuffled
from mappa_core.types import Scored, Unscored, Verdict


def verdicts() -> list[Verdict]:
    out: list[Verdict] = []
    for i in range(20):
        out.append(Scored(f"p{i}#0/solver/0", i / 10, f"s{i}", "solver"))
        out.append(Unscored(f"p{i}#0/coder/0", "gone") if i == 3 else Scored(f"p{i}#0/coder/0", 5 + i / 10, f"c{i}"))
        out.append(Scored(f"p{i}#0/coder/1", 8 + i / 10, f"d{i}"))
    return out


def values(of: list[Verdict], role: str) -> list[float]:
    return [v.value for v in of if isinstance(v, Scored) and f"/{role}/" in v.action]


def test_each_role_keeps_its_scores() -> None:
    before, after = verdicts(), shuffled(verdicts(), seed=1)
    assert [v.action for v in after] == [v.action for v in before]
    for role in ("solver", "coder"):
        assert values(after, role) != values(before, role)
        assert sorted(values(after, role)) == sorted(values(before, role))


def test_a_reason_goes_with_its_score() -> None:
    pairs = {(v.value, v.reason, v.blame) for v in verdicts() if isinstance(v, Scored)}
    assert {(v.value, v.reason, v.blame) for v in shuffled(verdicts(), seed=1) if isinstance(v, Scored)} == pairs


def test_the_unscored_stay_unscored() -> None:
    assert [v for v in shuffled(verdicts(), seed=1) if isinstance(v, Unscored)] == [Unscored("p3#0/coder/0", "gone")]


def test_the_seed_decides() -> None:
    assert shuffled(verdicts(), seed=1) == shuffled(verdicts(), seed=1)
    assert shuffled(verdicts(), seed=1) != shuffled(verdicts(), seed=2)


def test_an_id_without_a_role_is_refused() -> None:
    with pytest.raises(ValueError, match="EPISODE/ROLE/TURN"):
        shuffled([Scored("p/solver/x", 1, "")], seed=0)
