"""Whether sampler and trainer give the same tokens the same probability. Refuses to average nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Mismatch(NamedTuple):
    """Over all tokens, in nats. The maximum is left out: in bfloat16 it is noise."""

    mean_abs: float
    """Mean |trainer - sampler|."""
    k3: float
    """k3 estimate of KL(sampler || trainer): mean of exp(d) - 1 - d, d = trainer - sampler; never negative."""


def mismatch(sampler: Sequence[Sequence[float]], trainer: Sequence[Sequence[float]]) -> Mismatch:
    """Compares two sets of (T,) logprobs of the same sampled tokens, at the same policy version.

    ValueError where they are empty, ragged against each other, or not finite.
    """
    for i, (a, b) in enumerate(zip(sampler, trainer, strict=True)):
        if len(a) != len(b):
            raise ValueError(f"sample {i}: {len(a)} sampler and {len(b)} trainer logprobs; give the same tokens")
    d = np.array([b - a for x, y in zip(sampler, trainer, strict=True) for a, b in zip(x, y, strict=True)], np.float64)
    if not d.size or not np.isfinite(d).all():
        raise ValueError(f"{d.size} logprobs, all finite: {bool(np.isfinite(d).all())}; nothing to compare")
    return Mismatch(float(np.abs(d).mean()), float((np.expm1(d) - d).mean()))
