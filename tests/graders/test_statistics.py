"""Intervals against closed forms, scipy, and the coverage they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from mappa_core.graders.statistics import Interval, clustered, exact, wilson


@pytest.mark.parametrize(("k", "n"), [(0, 10), (1, 10), (5, 10), (9, 10), (10, 10), (37, 100)])
def test_exact_and_wilson_are_scipys(k: int, n: int) -> None:
    peer = stats.binomtest(k, n)
    assert exact(k, n) == pytest.approx(tuple(peer.proportion_ci(0.95, "exact")), abs=1e-12)
    assert wilson(k, n) == pytest.approx(tuple(peer.proportion_ci(0.95, "wilson")), abs=1e-12)


def test_exact_at_the_ends_is_the_closed_form() -> None:
    assert exact(0, 20) == (0.0, pytest.approx(1 - 0.025 ** (1 / 20)))
    assert exact(20, 20) == (pytest.approx(0.025 ** (1 / 20)), 1.0)


def test_none_and_all_right_fall_back_to_problems_as_trials() -> None:
    none, every = clustered([[0, 0]] * 20, 1), clustered([[1, 1, 1]] * 20, 1)
    assert (none.value, none.low, none.n) == (0.0, 0.0, 40)
    assert none.high == pytest.approx(1 - 0.025 ** (1 / 20))
    assert (every.value, every.high, every.n) == (1.0, 1.0, 60)
    assert every.low == pytest.approx(0.025 ** (1 / 20))


def test_problems_that_do_not_differ_say_nothing_about_others() -> None:
    assert clustered([[0, 1]] * 10, 1) == Interval(0.5, 0.0, 1.0, 20)
    assert clustered([[1, 0, 0, 1]], 1) == Interval(0.5, 0.0, 1.0, 4)


def test_a_seed_gives_one_interval_and_the_mean_is_over_episodes() -> None:
    data = [[1.0], [0.0, 0.0, 0.0], [1.0, 0.0]]
    first = clustered(data, 7)
    assert first == clustered(data, 7)
    assert first.value == pytest.approx(2 / 6)
    assert first.n == 6
    many = [[float(i % 3 == 0), float(i % 5 == 0)] for i in range(50)]
    assert clustered(many, 7) == clustered(many, 7) != clustered(many, 8)


def test_one_sample_each_is_near_the_normal_interval() -> None:
    data = [[1.0]] * 120 + [[0.0]] * 280
    found = clustered(data, 0)
    half = 1.96 * math.sqrt(0.3 * 0.7 / 400)
    assert (found.low, found.high) == (pytest.approx(0.3 - half, abs=0.006), pytest.approx(0.3 + half, abs=0.006))


def test_samples_of_one_problem_are_one_trial() -> None:
    # Four equal samples of each of 100 problems know no more than one sample of each.
    data = [[float(i < 40)] for i in range(100)]
    once, four = clustered(data, 3), clustered([row * 4 for row in data], 3)
    assert (four.low, four.high) == (once.low, once.high)
    assert four.n == 400


def test_agrees_with_scipys_bootstrap_of_problem_means() -> None:
    rng = np.random.default_rng(5)
    data = (rng.random((80, 2)) < rng.random((80, 1))).astype(float)
    peer = stats.bootstrap(
        (data.mean(1),), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(0)
    )
    found = clustered(data.tolist(), 0)
    assert (found.low, found.high) == pytest.approx(tuple(peer.confidence_interval), abs=0.012)


def test_coverage_with_correlated_samples() -> None:
    rng = np.random.default_rng(11)
    inside = 0
    for seed in range(200):
        chance = rng.beta(0.5, 0.5, size=(60, 1))
        found = clustered((rng.random((60, 4)) < chance).astype(float).tolist(), seed)
        inside += found.low <= 0.5 <= found.high
    assert inside >= 180, "95 % promised; 90 % is 3.2 standard errors below"


def test_bad_input_is_one_line() -> None:
    for data, word in (
        ([], "no episodes"),
        ([[], []], "no episodes"),
        ([[2.0]], "outside"),
        ([[float("nan")]], "outside"),
    ):
        with pytest.raises(ValueError, match=word):
            clustered(data, 0)
    with pytest.raises(ValueError, match="successes"):
        exact(3, 2)
    with pytest.raises(ValueError, match="level"):
        wilson(1, 2, 95)
