"""A tiny Llama trained from nothing on demonstrations: the lab's base. Same rows, shape and recipe, same bytes.

Supervised, in this process, on the CPU, float32, with a fixed number of threads: bits depend on it. It knows tokens
only; who renders demonstrations, and whether the base is good enough, is decided elsewhere. Refused: rows without a
token to learn, and rows longer than the model.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from mappa_core.config import LabModel

PROMPT_WEIGHT = 0.1
"""Of a prompt's tokens in the loss, beside 1 for a response's: reading the prompt is learned faster with a little."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A conversation to learn from: (T,) tokens and the weight of each in the loss (as a target)."""

    tokens: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """The model: Llama with tied embeddings and heads of 32."""

    vocabulary: int
    eos: int
    pad: int
    hidden: int = 96
    layers: int = 2
    max_len: int = LabModel.MAX_LEN


@dataclass(frozen=True, slots=True)
class Recipe:
    """The supervised run: AdamW, learning rate rising for `warmup` steps, then falling linearly to 0."""

    steps: int
    seed: int
    lr: float = 5e-3
    warmup: int = 30
    betas: tuple[float, float] = (0.9, 0.98)
    """With the usual 0.999 and no warm-up copying a number is learned three times slower."""
    batch: int = 48
    """Rows a step, of all roles: batches of one role each are learned from far slower."""
    threads: int = 2
    """Part of the result: sums are split over them."""


Progress = Callable[[int, int, float], None]
"""Called after each step with steps done, steps in all, and the loss."""


def train(
    rows: Iterable[TokenRow], shape: Shape, recipe: Recipe, directory: Path, progress: Progress | None = None
) -> None:
    """Trains and writes config.json, generation_config.json and model.safetensors into `directory`.

    What is there beside them stays. ValueError names a row that can't be learned from.
    """
    transformers_logging.disable_progress_bar()
    kept = list(rows)
    _check(kept, shape)
    with _exact(recipe.threads, recipe.seed):
        model = LlamaForCausalLM(_config(shape)).float().train()
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=recipe.lr, betas=recipe.betas, weight_decay=0.01, fused=True
        )
        for step, batch in enumerate(_batches(kept, recipe)):
            optimizer.param_groups[0]["lr"] = _lr(recipe, step)
            loss = _backward(model, batch, shape.pad)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if progress is not None:
                progress(step + 1, recipe.steps, loss)
    model.generation_config = GenerationConfig(eos_token_id=shape.eos, pad_token_id=shape.pad)
    model.save_pretrained(directory)


def copied(directory: Path, rows: Sequence[TokenRow], digits: frozenset[int], threads: int = 1) -> float:
    """The share of `rows` whose digits are all the model's likeliest choice, given everything before them: its ceiling.

    Rows are conversations without mistakes; only tokens of weight 1 (responses) that are in `digits` are asked for.
    Rows without such a token don't count; ValueError where none has one.
    """
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    right: list[bool] = []
    with _exact(threads, 0), torch.no_grad():
        for row in rows:
            asked = [i for i, (t, w) in enumerate(zip(row.tokens, row.weights, strict=True)) if w == 1 and t in digits]
            if asked:
                choice = model(torch.tensor([row.tokens])).logits[0].argmax(-1)  # (T,) choice for the token after each
                right.append(all(choice[i - 1].item() == row.tokens[i] for i in asked))
    if not right:
        raise ValueError("no row has a digit in a response: give conversations of the lab")
    return sum(right) / len(right)


def _config(shape: Shape) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=3 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.hidden // 32,
        num_key_value_heads=shape.hidden // 32,
        head_dim=32,
        max_position_embeddings=shape.max_len,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=shape.eos,
        pad_token_id=shape.pad,
        use_cache=True,
    )


def _check(rows: list[TokenRow], shape: Shape) -> None:
    if not rows:
        raise ValueError("no demonstrations: nothing to train the base on")
    for at, row in enumerate(rows):
        if not any(row.weights[1:]):
            raise ValueError(f"demonstration {at} has no token to learn")
        if len(row.tokens) > shape.max_len:
            raise ValueError(f"demonstration {at} has {len(row.tokens)} tokens; the model holds {shape.max_len}")


def _lr(recipe: Recipe, step: int) -> float:
    return recipe.lr * min(1.0, (step + 1) / max(1, recipe.warmup)) * (1 - step / recipe.steps)


def _batches(rows: list[TokenRow], recipe: Recipe) -> Iterator[list[TokenRow]]:
    """`recipe.steps` batches: the rows in random order, again and again."""
    rng = random.Random(f"warmstart/{recipe.seed}")
    queue: list[TokenRow] = []
    for _ in range(recipe.steps):
        while len(queue) < recipe.batch:
            queue += rng.sample(rows, len(rows))
        yield queue[: recipe.batch]
        del queue[: recipe.batch]


def _backward(model: LlamaForCausalLM, batch: list[TokenRow], pad: int) -> float:
    """Leaves the gradient of the weighted mean cross-entropy of `batch` and returns the loss.

    The longest third is computed apart, so that the others aren't padded to it.
    """
    near = sorted(batch, key=lambda row: len(row.tokens))
    cut = len(near) * 2 // 3
    weight = sum(sum(row.weights[1:]) for row in batch)
    total = 0.0
    for part in (near[:cut], near[cut:]):
        if part:
            loss = _weighted_loss(model, part, pad) / weight
            loss.backward()
            total += loss.item()
    return total


def _weighted_loss(model: LlamaForCausalLM, rows: list[TokenRow], pad: int) -> torch.Tensor:
    """Cross-entropies times weights, summed. Rows are padded on the right, where a causal model does not look."""
    longest = max(len(row.tokens) for row in rows)
    tokens = torch.tensor([[*row.tokens] + [pad] * (longest - len(row.tokens)) for row in rows])  # (B, T)
    weights = torch.tensor([[*row.weights] + [0.0] * (longest - len(row.tokens)) for row in rows])  # (B, T)
    logits = model(tokens, use_cache=False).logits[:, :-1]  # (B, T-1, V)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return (losses * weights[:, 1:].flatten()).sum()


@contextlib.contextmanager
def _exact(threads: int, seed: int) -> Iterator[None]:
    """Fixed seed and number of threads, deterministic kernels; all as before afterwards."""
    before, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.set_num_threads(before)
            torch.use_deterministic_algorithms(strict)
