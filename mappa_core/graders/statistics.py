"""Intervals for success rates. Samples of one problem are no independent trials: problems are what is resampled.

Deterministic for a seed. Refuses empty data and values outside 0..1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its two-sided interval, all in 0..1; `n` counts episodes."""

    value: float
    low: float
    high: float
    n: int


def clustered(by_problem: Sequence[Sequence[float]], seed: int, level: float = 0.95) -> Interval:
    """Mean over all episodes, with a percentile bootstrap interval that resamples problems, whole.

    `by_problem`: the values of each problem's episodes, 0..1 each, e.g. [[1, 0], [1, 1]]. Where no problem differs from
    another no resample can, and a bootstrap would claim certainty; then: all 0 or all 1, the exact (Clopper-Pearson)
    interval with problems as trials; any other constant, or one problem, the whole of 0..1, for nothing is known of how
    problems vary. ValueError: no episode, or a value outside 0..1.
    """
    groups = [np.asarray(values, float) for values in by_problem if len(values)]
    if not groups:
        raise ValueError("no episodes: there is nothing to take a mean of")
    everything = np.concatenate(groups)
    if not ((everything >= 0) & (everything <= 1)).all():
        raise ValueError("a value is outside 0..1; pass successes as 0 and 1")
    _check(level)
    mean, n = float(everything.mean()), everything.size
    if everything.min() == everything.max() and mean in (0.0, 1.0):
        low, high = exact(round(mean * len(groups)), len(groups), level)
        return Interval(mean, low, high, n)
    sums, counts = np.array([g.sum() for g in groups]), np.array([g.size for g in groups])
    if np.ptp(sums / counts) == 0:
        return Interval(mean, 0.0, 1.0, n)
    drawn = np.random.default_rng(seed).integers(len(groups), size=(_RESAMPLES, len(groups)))  # (resamples, problems)
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high), n)


def exact(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper-Pearson interval (low, high) of a proportion: covers at least `level`, whatever the truth.

    Source: Clopper and Pearson 1934, by quantiles of the beta distribution. Trials must be independent.
    """
    _check_counts(successes, trials)
    _check(level)
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else float(stats.beta.ppf(tail, successes, trials - successes + 1))
    high = 1.0 if successes == trials else float(stats.beta.ppf(1 - tail, successes + 1, trials - successes))
    return low, high


def wilson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval (low, high) of a proportion: shorter than the exact one, right on average.

    Source: Wilson 1927. Trials must be independent.
    """
    _check_counts(successes, trials)
    _check(level)
    z = float(stats.norm.ppf((1 + level) / 2))
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * (share * (1 - share) / trials + z * z / (4 * trials * trials)) ** 0.5
    low = 0.0 if successes == 0 else middle - half
    high = 1.0 if successes == trials else middle + half
    return low, high


def _check_counts(successes: int, trials: int) -> None:
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials: give 0 <= successes <= trials, trials >= 1")


def _check(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level {level} is not between 0 and 1; give 0.95 for 95 %")
