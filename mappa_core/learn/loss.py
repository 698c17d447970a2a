"""Log-probabilities of output tokens, and the clipped REINFORCE++ loss on them.

Refuses to average: it gives a sum, which the caller divides by the tokens of the whole optimizer step, so that the
gradient does not depend on how rows fall into micro-batches and ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from mappa_core.learn.batch import Packed, Targets


class Loss(NamedTuple):
    """Sums over the N tokens of a micro-batch; only `loss` carries a gradient."""

    loss: torch.Tensor
    clipped: torch.Tensor
    """Tokens whose ratio left [1 - clip, 1 + clip]."""
    capped: torch.Tensor
    """Tokens whose importance weight reached the cap."""
    kl: torch.Tensor
    """k3 estimate of KL(old || new), in nats."""


def token_logprobs(model: Callable[..., Any], packed: Packed) -> torch.Tensor:
    """(N,) float32 log-probabilities of the output tokens; logits exist for these positions only."""
    logits = model(
        input_ids=packed.input_ids,
        position_ids=packed.position_ids,
        bounds=packed.bounds,
        logits_to_keep=packed.select,
        use_cache=False,
    ).logits[0]  # (N, V)
    return -functional.cross_entropy(logits.float(), packed.targets, reduction="none")


def clipped_loss(logprobs: torch.Tensor, targets: Targets, clip: float, tis_cap: float) -> Loss:
    """Sum over tokens of -w min(ratio A, clamp(ratio, 1 - clip, 1 + clip) A), from the (N,) new logprobs.

    ratio = exp(new - old), the trainer's own; w = min(exp(old - sampler), tis_cap), without gradient, corrects for a
    sampler whose probabilities differ from the trainer's (PPO, arXiv 1707.06347; truncated importance sampling).
    """
    log_ratio = logprobs - targets.old
    ratio = log_ratio.exp()
    importance = (targets.old - targets.sampler).exp()
    weight = importance.clamp(max=tis_cap)
    surrogate = torch.minimum(ratio * targets.advantages, ratio.clamp(1 - clip, 1 + clip) * targets.advantages)
    with torch.no_grad():
        clipped = ((ratio - 1).abs() > clip).sum()
        capped = (importance >= tis_cap).sum()
        kl = (torch.expm1(log_ratio) - log_ratio).sum()
    return Loss(-(weight * surrogate).sum(), clipped, capped, kl)
