"""REINFORCE++ against numbers worked out by hand, and against a plain float64 loop."""

from __future__ import annotations

import random

import pytest

from mappa_core.learn import advantages
from mappa_core.types import Sample


def _sample(name: str, tokens: int, reward: float) -> Sample:
    return Sample(name, (1,), tuple(range(tokens)), (-1.0,) * tokens, reward)


def test_hand_made() -> None:
    """Invariant 4. a: kl (1, -2), reward 1; b: kl (0,), reward 0; beta 0.1.

    Token rewards a: -0.1, 0.2 + 1; return-to-go a: 1.1, 1.2; b: 0. Mean 2.3/3; population variance
    (1.21 + 1.44)/3 - (2.3/3)^2 = 0.2955...
    """
    made = advantages.batch(
        [_sample("a", 2, 1.0), _sample("b", 1, 0.0)], [(-1.0, -3.0), (-2.0,)], [(-2.0, -1.0), (-2.0,)], 0.1
    )
    mean, std = 2.3 / 3, (2.65 / 3 - (2.3 / 3) ** 2) ** 0.5
    assert (made.mean, made.std) == pytest.approx((mean, std))
    assert made.rows[0].advantages == pytest.approx(((1.1 - mean) / std, (1.2 - mean) / std))
    assert made.rows[1].advantages == pytest.approx(((0 - mean) / std,))
    assert made.kl == pytest.approx(-1 / 3)
    assert made.rows[0].old_logprobs == (-1.0, -3.0)


def test_as_a_plain_loop() -> None:
    """Invariant 4: one mean and one deviation over all tokens, not per action; return-to-go within an action."""
    rng = random.Random(0)
    samples = [_sample(str(i), rng.randint(1, 9), rng.random()) for i in range(20)]
    old, ref = ([tuple(-rng.random() for _ in s.output_tokens) for s in samples] for _ in range(2))
    returns = []
    for s, o, r in zip(samples, old, ref, strict=True):
        total = s.reward
        own = []
        for a, b in reversed(list(zip(o, r, strict=True))):
            total += -0.3 * (a - b)
            own.append(total)
        returns.append(own[::-1])
    flat = [x for own in returns for x in own]
    mean = sum(flat) / len(flat)
    std = (sum((x - mean) ** 2 for x in flat) / len(flat)) ** 0.5
    made = advantages.batch(samples, old, ref, 0.3)
    for row, own in zip(made.rows, returns, strict=True):
        assert row.advantages == pytest.approx([(x - mean) / std for x in own], abs=1e-12)
    assert sum(x for row in made.rows for x in row.advantages) == pytest.approx(0, abs=1e-9)


def test_equal_rewards_are_refused() -> None:
    """Invariant 4: their normalised advantages would be KL noise, blown up."""
    with pytest.raises(ValueError, match="2 samples with equal rewards"):
        advantages.batch([_sample("a", 1, 0.5), _sample("b", 1, 0.5)], [(-1.0,), (-2.0,)], [(-1.0,), (-1.0,)], 0.1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    samples = [_sample("a", 1, 0.5), _sample("b", 1, 1.0)]
    with pytest.raises(ValueError, match="action b: a logprob or its reward is not finite"):
        advantages.batch(samples, [(-1.0,), (bad,)], [(-1.0,), (-1.0,)], 0.1)


def test_a_logprob_for_each_token() -> None:
    samples = [_sample("a", 2, 0.5), _sample("b", 1, 1.0)]
    with pytest.raises(ValueError, match="action a: 2 tokens, 1 logprobs"):
        advantages.batch(samples, [(-1.0,), (-1.0,)], [(-1.0, -1.0), (-1.0,)], 0.1)
