"""What the sampler decides without an engine: batches, and whether a probe shows the weights it claims to serve."""

from __future__ import annotations

import pytest

from mappa_core.engine.calls import EngineError
from mappa_core.engine.sampler import LIMITS, Room, Usage, batches, budget, check_served
from mappa_core.types import Policy, Request

POLICY = Policy("solver", 3, "policies/solver/3", "abcdef0123456789")
NOW = (-1.0, -2.0, -3.0, -0.5)
BEFORE = (-1.1, -2.2, -2.9, -0.6)
FLOAT32 = LIMITS["float32"]


def _asked(*sizes: int) -> list[Request]:
    return [Request(f"p#{i}", "solver", 0, (7,) * size, i) for i, size in enumerate(sizes)]


def _sizes(requests: list[Request], room: Room) -> list[list[int]]:
    return [[len(r.prompt_tokens) for r in batch] for batch in batches(requests, 10, 100, room)]


def test_batches_keep_order_and_fit_sequences_prefill_and_cache() -> None:
    asked = _asked(30, 40, 50, 60)
    assert _sizes(asked, Room(9, 999, 99)) == [[30, 40, 50, 60]]
    assert _sizes(asked, Room(3, 999, 99)) == [[30, 40, 50], [60]]
    assert _sizes(asked, Room(9, 120, 99)) == [[30, 40, 50], [60]]
    # Grown by 10, they take 2, 2, 2 and 3 blocks of 32.
    assert _sizes(asked, Room(9, 999, 6)) == [[30, 40, 50], [60]]
    assert _sizes(asked, Room(9, 999, 5)) == [[30, 40], [50, 60]]
    assert _sizes([], Room(9, 999, 99)) == []


def test_budget_ends_at_the_longest_sequence_and_refuses_a_prompt_without_room() -> None:
    [short, long, full, empty] = _asked(30, 95, 100, 0)
    assert budget(short, 10, 100) == 10
    assert budget(long, 10, 100) == 5
    for odd in (full, empty):
        with pytest.raises(EngineError, match=r"p#\d/solver/0: a prompt of \d+ tokens; engine.max_len is 100"):
            budget(odd, 10, 100)


def test_a_probe_of_the_version_served_passes_with_its_gap() -> None:
    said = (-1.0001, -2.0, -3.0001, -0.5)
    assert check_served(POLICY, said, NOW, BEFORE, FLOAT32) == pytest.approx(0.00005)
    assert check_served(POLICY, said, NOW, None, FLOAT32) == pytest.approx(0.00005)


def test_a_probe_of_other_weights_is_an_error() -> None:
    """Invariant 8."""
    for said in (BEFORE, (float("nan"),) * 4):
        with pytest.raises(EngineError, match=r"solver version 3 .abcdef01.*did the swap fail"):
            check_served(POLICY, said, NOW, None, FLOAT32)


def test_a_probe_of_the_version_before_is_an_error_where_both_are_near() -> None:
    """Invariant 8: an update of 2e-4 nat passes the limit, but is seen."""
    near = tuple(x + 2e-4 for x in NOW)
    with pytest.raises(EngineError, match="the version before"):
        check_served(POLICY, near, NOW, near, FLOAT32)
    assert check_served(POLICY, NOW, NOW, near, FLOAT32) == 0.0


def test_an_update_too_small_to_see_proves_nothing() -> None:
    unseen = tuple(x + 5e-5 for x in NOW)
    assert check_served(POLICY, unseen, NOW, unseen, FLOAT32) == pytest.approx(5e-5)


def test_a_last_token_computed_on_stale_blocks_is_an_error() -> None:
    """Invariant 8: only the last logprob reads the prefix cache, and forty tokens would hide it in the mean."""
    now, said = (-1.0,) * 39 + (-1.0,), (-1.0,) * 39 + (-1.02,)
    with pytest.raises(EngineError, match="was the prefix cache dropped"):
        check_served(POLICY, said, now, None, FLOAT32)


def test_probes_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        check_served(POLICY, NOW[:3], NOW, None, FLOAT32)


def test_usage_counts_generation_and_swaps_as_speed_and_everything_as_busy() -> None:
    usage = Usage(generate_s=3.0, swap_s=1.0, probe_s=0.5, swaps=2, prompt_tokens=10, output_tokens=400)
    assert usage.busy_seconds == 4.5
    assert usage.tokens_per_second == 100.0
    assert Usage().tokens_per_second is None
