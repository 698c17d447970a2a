"""The learning rate by hand."""

from __future__ import annotations

import pytest

from mappa_core.config import Learn
from mappa_core.learn.schedule import learning_rate


def _learn(warmup: float) -> Learn:
    return Learn.model_validate({"lr": 1.0, "min_lr_ratio": 0.1, "warmup_ratio": warmup})


def test_warm_up_then_half_a_cosine() -> None:
    learn = _learn(0.2)
    rates = [learning_rate(learn, i, 10) for i in range(10)]
    assert rates[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert rates[9] == pytest.approx(0.1)
    assert rates[2] - rates[3] < rates[5] - rates[6]
    assert sum(rates[2:]) == pytest.approx(8 * 0.55)  # a cosine is symmetric about its middle


def test_the_shortest_runs() -> None:
    assert learning_rate(_learn(0.0), 0, 1) == 1.0
    assert learning_rate(_learn(0.03), 0, 1) == 1.0


@pytest.mark.parametrize("update", [-1, 10])
def test_a_step_outside_the_run_is_an_error(update: int) -> None:
    with pytest.raises(ValueError, match=f"optimizer step {update} of 10"):
        learning_rate(_learn(0.0), update, 10)
