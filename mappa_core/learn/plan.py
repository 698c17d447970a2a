"""Who computes what in an optimizer step: mini-batches, ranks, packed micro-batches. Indices only, no tensors.

Every rank gets the same number of micro-batches, because ZeRO-3 gathers parameters in each: one that has fewer runs
fillers of weight zero. Refuses a row that does not fit a micro-batch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mappa_core.types import Row, Sample


@dataclass(frozen=True, slots=True)
class Micro:
    """One packed forward pass: indices of rows, and the weight of their loss."""

    rows: tuple[int, ...]
    weight: float
    """1, or 0 for a filler that only keeps the ranks in step."""


@dataclass(frozen=True, slots=True)
class MicroRows:
    """A micro-batch with its rows."""

    rows: tuple[Row, ...]
    weight: float


@dataclass(frozen=True, slots=True)
class Step:
    """One rank's part of one optimizer step."""

    micros: tuple[MicroRows, ...]
    kept_tokens: int
    """Output tokens of the step, of all ranks together."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What one rank saw in one optimizer step: sums over its output tokens, fillers excluded."""

    loss: float
    clipped: float
    capped: float
    kl: float
    grad_norm: float
    """Of the whole gradient, before clipping: the same on every rank."""


def steps(rows: Sequence[Row], updates: int, ranks: int, pack_tokens: int, seed: int) -> tuple[tuple[Step, ...], ...]:
    """At most `updates` optimizer steps on `rows`, each as the parts of its ranks: (steps, ranks)."""
    kept = [len(row.advantages) for row in rows]
    planned = []
    for part in minibatches(kept, updates, seed):
        total = sum(kept[i] for i in part)
        planned.append(
            tuple(
                Step(tuple(MicroRows(tuple(rows[i] for i in m.rows), m.weight) for m in micros), total)
                for micros in shares([length(row.sample) for row in rows], part, ranks, pack_tokens)
            )
        )
    return tuple(planned)


def length(sample: Sample) -> int:
    """Tokens of prompt and output."""
    return len(sample.prompt_tokens) + len(sample.output_tokens)


def minibatches(tokens: Sequence[int], parts: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """Splits rows of `tokens` trained tokens into at most `parts` optimizer steps of about equally many tokens.

    Which rows go together and the order of the steps follow from `seed` alone; a part without a row is left out.
    """
    order = list(range(len(tokens)))
    shuffle = random.Random(seed)
    shuffle.shuffle(order)
    split = _balanced(tokens, order, parts)
    shuffle.shuffle(split)
    return tuple(tuple(part) for part in split if part)


def shares(tokens: Sequence[int], rows: Sequence[int], ranks: int, pack_tokens: int) -> tuple[tuple[Micro, ...], ...]:
    """Micro-batches of each rank for `rows`, whose whole lengths are `tokens[row]`: (ranks, micro-batches).

    Ranks get about equally many tokens; a micro-batch has at most `pack_tokens`. ValueError where a row has more.
    """
    for row in rows:
        if tokens[row] > pack_tokens:
            raise ValueError(
                f"a row of {tokens[row]} tokens: set engine.pack_tokens to at least that, not {pack_tokens}"
            )
    per_rank = [_packed(tokens, part, pack_tokens) for part in _balanced(tokens, list(rows), ranks)]
    filler = Micro((min(rows, key=lambda row: tokens[row]),), 0.0)
    most = max(len(micros) for micros in per_rank)
    return tuple(tuple(micros + [filler] * (most - len(micros))) for micros in per_rank)


def _balanced(tokens: Sequence[int], rows: list[int], parts: int) -> list[list[int]]:
    """Longest first to the part with fewest tokens; ties in the order given."""
    split: list[list[int]] = [[] for _ in range(parts)]
    loads = [0] * parts
    for row in sorted(rows, key=lambda row: -tokens[row]):
        part = loads.index(min(loads))
        split[part].append(row)
        loads[part] += tokens[row]
    return split


def _packed(tokens: Sequence[int], rows: list[int], pack_tokens: int) -> list[Micro]:
    """First fit, in the order given."""
    bins: list[list[int]] = []
    loads: list[int] = []
    for row in rows:
        fits = next((i for i, load in enumerate(loads) if load + tokens[row] <= pack_tokens), None)
        if fits is None:
            bins.append([row])
            loads.append(tokens[row])
        else:
            bins[fits].append(row)
            loads[fits] += tokens[row]
    return [Micro(tuple(rows), 1.0) for rows in bins]
