"""Sampler against trainer, by hand."""

from __future__ import annotations

import math

import pytest

from mappa_core.learn.mismatch import mismatch


def test_hand_made() -> None:
    """Invariant 7: differences 0, 0.5 and -0.1, in nats a token."""
    found = mismatch([(-1.0, -2.0), (-3.0,)], [(-1.0, -1.5), (-3.1,)])
    assert found.mean_abs == pytest.approx(0.6 / 3)
    assert found.k3 == pytest.approx((math.exp(0.5) - 1 - 0.5 + math.exp(-0.1) - 1 + 0.1) / 3)


def test_equal_logprobs_do_not_differ() -> None:
    assert mismatch([(-1.0,)], [(-1.0,)]) == (0.0, 0.0)


def test_nothing_ragged_and_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="0 logprobs"):
        mismatch([], [])
    with pytest.raises(ValueError, match="sample 1: 1 sampler and 2 trainer logprobs"):
        mismatch([(-1.0,), (-1.0,)], [(-1.0,), (-1.0, -2.0)])
    with pytest.raises(ValueError, match="all finite: False"):
        mismatch([(-1.0,)], [(math.nan,)])
