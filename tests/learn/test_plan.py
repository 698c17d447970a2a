"""Splits: every row once in each update, balanced, the same number of micro-batches on every rank."""

from __future__ import annotations

import random

import pytest

from mappa_core.learn.plan import Micro, minibatches, shares, steps
from mappa_core.types import Row, Sample


def _row(prompt: int, output: int) -> Row:
    sample = Sample("a", (1,) * prompt, (2,) * output, (-1.0,) * output, 1.0)
    return Row(sample, (-1.0,) * output, (1.0,) * output)


def test_minibatches_are_balanced_and_follow_the_seed() -> None:
    rng = random.Random(0)
    tokens = [rng.randint(1, 30) for _ in range(50)]
    split = minibatches(tokens, 3, seed=1)
    assert sorted(i for part in split for i in part) == list(range(50))
    loads = [sum(tokens[i] for i in part) for part in split]
    assert max(loads) - min(loads) <= 2
    assert split == minibatches(tokens, 3, seed=1) != minibatches(tokens, 3, seed=2)


def test_fewer_rows_than_steps_make_fewer_steps() -> None:
    assert minibatches([5], 3, seed=0) == ((0,),)


def test_shares_by_hand() -> None:
    """900 tokens go alone; the other rank packs what fits, and the one with fewer micro-batches gets a filler."""
    assert shares([900, 60, 30, 50], [0, 1, 2, 3], ranks=2, pack_tokens=900) == (
        (Micro((0,), 1.0),),
        (Micro((1, 3, 2), 1.0),),
    )
    assert shares([90, 60, 30, 50], [0, 1, 2, 3], ranks=2, pack_tokens=90) == (
        (Micro((0,), 1.0), Micro((2,), 1.0)),
        (Micro((1,), 1.0), Micro((3,), 1.0)),
    )


@pytest.mark.parametrize("seed", range(50))
def test_ranks_stay_in_step_and_every_row_has_weight_once(seed: int) -> None:
    """Invariant 6: fillers, of weight zero, make up for fewer rows."""
    rng = random.Random(seed)
    rows = [_row(rng.randint(1, 40), rng.randint(1, 40)) for _ in range(rng.randint(1, 15))]
    for step in steps(rows, rng.randint(1, 3), rng.randint(1, 4), pack_tokens=80, seed=seed):
        assert len({len(part.micros) for part in step}) == 1
        weighed = [(row, m.weight) for part in step for m in part.micros for row in m.rows]
        assert {weight for _, weight in weighed} <= {0.0, 1.0}
        assert sum(len(row.advantages) * weight for row, weight in weighed) == step[0].kept_tokens
        for part in step:
            for micro in part.micros:
                assert sum(len(r.sample.prompt_tokens + r.sample.output_tokens) for r in micro.rows) <= 80
    total = sum(step[0].kept_tokens for step in steps(rows, 2, 2, 80, seed))
    assert total == sum(len(row.advantages) for row in rows)


def test_a_row_that_fits_nowhere_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a row of 81 tokens: set engine\.pack_tokens"):
        shares([81], [0], ranks=1, pack_tokens=80)
