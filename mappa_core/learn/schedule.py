"""The learning rate as a pure function of the optimizer step, so that a resumed run needs no scheduler state."""

from __future__ import annotations

import math

from mappa_core.config import Learn


def learning_rate(learn: Learn, update: int, total: int) -> float:
    """Rate of optimizer step `update` (from 0) of `total`: linear warm-up from lr / warm-up steps, no step at zero,
    then a half cosine that reaches lr * min_lr_ratio at the last step. ValueError for a step outside the run."""
    if not 0 <= update < total:
        raise ValueError(f"optimizer step {update} of {total}: steps * updates of the config must cover it")
    warmup = math.ceil(learn.warmup_ratio * total)
    if update < warmup:
        return learn.lr * (update + 1) / warmup
    progress = (update - warmup) / max(1, total - 1 - warmup)
    low = learn.lr * learn.min_lr_ratio
    return low + (learn.lr - low) * 0.5 * (1 + math.cos(math.pi * progress))
