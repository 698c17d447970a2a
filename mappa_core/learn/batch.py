"""Rows -> tensors of one packed sequence: no padding, no row sees another, and only output tokens are predicted.

`attention` is the other half: causal attention within each row, as transformers calls it. The mask is block-diagonal,
so the blocks are computed one by one and no (T, T) mask exists. On cuda a variable-length flash kernel could take its
place; that is not written yet, the loop works there too (not yet run).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from mappa_core.types import Row, Sample


class Packed(NamedTuple):
    """Samples laid end to end: T = all their tokens, N = their output tokens."""

    input_ids: torch.Tensor  # (1, T)
    position_ids: torch.Tensor  # (1, T), from 0 in each sample
    bounds: tuple[int, ...]  # (rows + 1,) where each sample starts, and T
    select: torch.Tensor  # (N,) positions whose logits predict an output token
    targets: torch.Tensor  # (N,) those output tokens


class Targets(NamedTuple):
    """What the loss needs per output token: all (N,), float32."""

    old: torch.Tensor
    sampler: torch.Tensor
    advantages: torch.Tensor


def pack(samples: Sequence[Sample], device: str = "cpu") -> Packed:
    """The packed sequence of `samples`, in their order; ValueError where one has no prompt or no output."""
    for s in samples:
        if not s.prompt_tokens or not s.output_tokens:
            raise ValueError(
                f"action {s.action}: {len(s.prompt_tokens)} prompt and {len(s.output_tokens)} output tokens"
            )
    rows = [s.prompt_tokens + s.output_tokens for s in samples]
    bounds = (0, *accumulate(len(row) for row in rows))
    # The logits at a position predict the next token: from the prompt's last one to the last but one.
    select = [
        i for s, end in zip(samples, bounds[1:], strict=True) for i in range(end - len(s.output_tokens) - 1, end - 1)
    ]
    return Packed(
        torch.tensor([[token for row in rows for token in row]], device=device),
        torch.cat([torch.arange(len(row)) for row in rows])[None].to(device),
        bounds,
        torch.tensor(select, device=device),
        torch.tensor([token for s in samples for token in s.output_tokens], device=device),
    )


def targets(rows: Sequence[Row], device: str = "cpu") -> Targets:
    """The loss's numbers of `rows`, in the order of `pack([r.sample for r in rows])`."""

    def flat(columns: list[tuple[float, ...]]) -> torch.Tensor:
        return torch.tensor([x for column in columns for x in column], dtype=torch.float32, device=device)

    return Targets(
        flat([r.old_logprobs for r in rows]),
        flat([r.sample.sampler_logprobs for r in rows]),
        flat([r.advantages for r in rows]),
    )


def attention(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    bounds: Sequence[int] = (),
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each packed row: query (1, H, T, D), key and value (1, K, T, D) -> (1, T, H, D)."""
    if query.shape[0] != 1 or query.shape[2] != bounds[-1] or attention_mask is not None:
        raise ValueError(f"packed attention takes one sequence and its bounds, not {tuple(query.shape)} and {bounds}")
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    lengths = [end - start for start, end in pairwise(bounds)]
    parts = [
        functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling)
        for q, k, v in zip(*(x.split(lengths, dim=2) for x in (query, key, value)), strict=True)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def unpack(values: torch.Tensor, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
    """(N,) values of a packed sequence -> one tuple of (T,) per sample."""
    parts = torch.split(values.float().cpu(), [len(s.output_tokens) for s in samples])
    return [tuple(part.tolist()) for part in parts]
