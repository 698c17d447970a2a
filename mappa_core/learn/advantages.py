"""REINFORCE++ advantages (arXiv 2501.03262; MAPPA, arXiv 2601.23228): numbers in, numbers out, no tensors.

Refuses samples whose rewards are all equal: normalising them would only blow up the KL term.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mappa_core.learn.samples import spread
from mappa_core.types import Row, Sample

Logprobs = Sequence[Sequence[float]]

VARIANCE_FLOOR = 1e-8
"""Below this the variance is taken as this (the reference's constant), so that no advantage is divided by zero."""


class Batch(NamedTuple):
    """The rows of one role in one step, and what was subtracted and divided by."""

    rows: tuple[Row, ...]
    mean: float
    std: float
    kl: float
    """Mean k1 estimate per token, trainer against reference, in nats."""


def batch(samples: Sequence[Sample], old: Logprobs, reference: Logprobs, beta: float) -> Batch:
    """Rows with normalised advantages, from logprobs of each sample's (T,) output tokens by policy and reference.

    r_t = -beta (old_t - reference_t) + [t = T] reward; A_t = r_t + ... + r_T; then one mean and one population standard
    deviation over all tokens of `samples`, which are therefore all kept samples of the role in the step, of every rank.
    ValueError where a reward or logprob is not finite, lengths differ, or all rewards are equal.
    """
    if spread(tuple(samples)) == 0:
        raise ValueError(f"{len(samples)} samples with equal rewards: skip the update and count it")
    kls = [_kl(s, o, r) for s, o, r in zip(samples, old, reference, strict=True)]
    returns = [_returns(-beta * kl, s.reward) for s, kl in zip(samples, kls, strict=True)]
    flat = np.concatenate(returns)
    mean, variance = float(flat.mean()), float(flat.var())
    std = max(variance, VARIANCE_FLOOR) ** 0.5
    rows = tuple(
        Row(s, tuple(o), tuple(((a - mean) / std).tolist())) for s, o, a in zip(samples, old, returns, strict=True)
    )
    return Batch(rows, mean, std, float(np.concatenate(kls).mean()))


def _returns(token_rewards: np.ndarray, reward: float) -> np.ndarray:
    """(T,) return-to-go, gamma 1, with `reward` at the last token."""
    rewards = token_rewards.copy()
    rewards[-1] += reward
    return np.cumsum(rewards[::-1])[::-1]


def _kl(sample: Sample, old: Sequence[float], reference: Sequence[float]) -> np.ndarray:
    """(T,) k1 estimate of KL(policy || reference) at the sampled tokens."""
    if not len(sample.output_tokens) == len(old) == len(reference) > 0:
        raise ValueError(
            f"action {sample.action}: {len(sample.output_tokens)} tokens, {len(old)} logprobs, {len(reference)} "
            "reference logprobs; give one each per token"
        )
    kl = np.asarray(old, np.float64) - np.asarray(reference, np.float64)
    if not (np.isfinite(kl).all() and np.isfinite(sample.reward)):
        raise ValueError(f"action {sample.action}: a logprob or its reward is not finite; nothing may be trained on it")
    return kl
