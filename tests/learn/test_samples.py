"""Conservation: every action goes one way, and no reward is invented."""

from __future__ import annotations

import random

import pytest

from mappa_core.learn.samples import select
from mappa_core.types import Action, Episode, Problem, Scored, Unscored, Verdict

PROBLEM = Problem("p", "lab", "1 + 1?")


def _action(episode: str, role: str, turn: int, finish: str = "stop") -> Action:
    assert finish in ("stop", "length")
    return Action(f"{episode}/{role}/{turn}", role, turn, 0, (1, 2), (3, 4), (-1.0, -2.0), "x", finish, "d")  # type: ignore[arg-type]


def _episode(name: str, *actions: Action) -> Episode:
    return Episode(name, PROBLEM, 0, actions)


def test_a_sample_is_the_tokens_that_were_sampled_and_a_tenth_of_the_score() -> None:
    episode = _episode("e", _action("e", "coder", 0), _action("e", "coder", 1))
    made = select("coder", [episode], [Scored("e/coder/0", 7.0, "r"), Scored("e/coder/1", 2.0, "r")], "keep")
    assert [s.reward for s in made.samples] == [0.7, 0.2]
    assert made.samples[1].action == "e/coder/1"
    assert (made.samples[0].prompt_tokens, made.samples[0].output_tokens) == ((1, 2), (3, 4))
    assert made.samples[0].sampler_logprobs == (-1.0, -2.0)


def test_an_unscored_action_is_left_out_and_counted() -> None:
    """Invariant 2: a score that is missing is missing, not 0 and not 5."""
    episode = _episode("e", *(_action("e", "coder", t) for t in range(3)))
    verdicts: list[Verdict] = [
        Scored("e/coder/0", 7.0, "r"),
        Unscored("e/coder/1", "budget"),
        Scored("e/coder/2", 1.0, "r"),
    ]
    made = select("coder", [episode], verdicts, "keep")
    assert [s.action for s in made.samples] == ["e/coder/0", "e/coder/2"]
    assert (made.counts.collected, made.counts.trained, made.counts.unscored) == (3, 2, 1)


def test_a_truncated_action_is_kept_or_masked() -> None:
    """Invariant 4: one rule; what is masked is no sample, so it is in no statistic either."""
    episode = _episode("e", _action("e", "solver", 0, "length"), _action("e", "solver", 1), _action("e", "solver", 2))
    verdicts = [Scored(a.id, float(i), "r") for i, a in enumerate(episode.actions)]
    assert select("solver", [episode], verdicts, "keep").counts.trained == 3
    masked = select("solver", [episode], verdicts, "mask")
    assert [s.action for s in masked.samples] == ["e/solver/1", "e/solver/2"]
    assert (masked.counts.trained, masked.counts.masked) == (2, 1)


def test_equal_rewards_skip_the_update() -> None:
    """Invariant 4."""
    episode = _episode("e", _action("e", "solver", 0), _action("e", "solver", 1))
    made = select("solver", [episode], [Scored(a.id, 5.0, "r") for a in episode.actions], "keep")
    assert made.samples == ()
    assert (made.counts.trained, made.counts.skipped) == (0, 2)


@pytest.mark.parametrize("seed", range(200))
def test_every_action_is_counted_once(seed: int) -> None:
    """Invariant 6: collected = trained + unscored + masked + skipped, whatever the coach and the sampler did."""
    rng = random.Random(seed)
    rule = rng.choice(("keep", "mask"))
    roles = ("solver", "coder")
    episodes = [
        _episode(
            f"e{i}",
            *(
                _action(f"e{i}", role, t, rng.choice(("stop", "length")))
                for role in roles
                for t in range(rng.randint(0, 2))
            ),
        )
        for i in range(rng.randint(0, 6))
    ]
    values = (3.0,) if seed % 5 == 0 else (0.0, 3.0, 10.0)
    verdicts: list[Verdict] = [
        Unscored(a.id, "refused") if rng.random() < 0.3 else Scored(a.id, rng.choice(values), "r")
        for e in episodes
        for a in e.actions
    ]
    for role in roles:
        made = select(role, episodes, verdicts, rule)
        counts = made.counts
        assert counts.collected == sum(a.role == role for e in episodes for a in e.actions)
        assert counts.collected == counts.trained + counts.unscored + counts.masked + counts.skipped
        assert counts.trained == len(made.samples)
        assert min(counts.trained, counts.unscored, counts.masked, counts.skipped) >= 0


def test_an_action_without_a_verdict_or_with_two_is_an_error() -> None:
    episode = _episode("e", _action("e", "coder", 0))
    with pytest.raises(ValueError, match="e/coder/0 has no verdict"):
        select("coder", [episode], [], "keep")
    with pytest.raises(ValueError, match="e/coder/0 has two verdicts"):
        select("coder", [episode], [Scored("e/coder/0", 1.0, "r"), Unscored("e/coder/0", "c")], "keep")
