"""The trainer on real Ray and DeepSpeed ZeRO-3, two ranks, against one process and plain torch."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mappa_core.config import ConfigError, Engine, Learn
from mappa_core.engine import weights
from mappa_core.engine.calls import EngineError
from mappa_core.engine.fleet import Session
from mappa_core.engine.trainer import Trainer
from mappa_core.learn.schedule import learning_rate
from mappa_core.types import Policy, Row, Sample

pytestmark = pytest.mark.stack

ENGINE = Engine.model_validate({"max_len": 1000, "pack_tokens": 1000, "start_timeout_s": 300, "call_timeout_s": 120})
LEARN = Learn.model_validate({"lr": 1e-3, "max_grad_norm": 1e6, "updates": 1, "warmup_ratio": 0.0})
TOTAL = 10
VOCABULARY = 61
ROLES = ("solver", "coder")


class Group(NamedTuple):
    trainer: Trainer
    base: Path
    fresh: Path
    """Its state before any update."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    settings = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    directory = tmp_path_factory.mktemp("base")
    LlamaForCausalLM(settings).save_pretrained(directory)
    (directory / "tokenizer_config.json").write_text("{}")
    return directory


@pytest.fixture(scope="module")
def ray_session() -> Iterator[Session]:
    session = Session()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def started(base: Path, ray_session: Session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    trainer = _start(base)
    trainer.ready(ENGINE.start_timeout_s)
    fresh = tmp_path_factory.mktemp("states") / "fresh"
    trainer.save(fresh)
    yield Group(trainer, base, fresh)
    trainer.stop()


@pytest.fixture
def group(started: Group) -> Group:
    """As it was before any update."""
    started.trainer.restore(started.fresh)
    return started


def _start(base: Path) -> Trainer:
    policies = tuple(Policy(role, 0, str(base), weights.digest(base)) for role in ROLES)
    return Trainer.start(policies, policies, LEARN, ENGINE, TOTAL)


def _rows(lengths: Sequence[tuple[int, int]], seed: int = 0) -> list[Row]:
    """Rows of these prompt and output lengths; old and sampler logprobs near those of a model that knows nothing."""
    rng = random.Random(seed)

    def tokens(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(n))

    def near(n: int) -> tuple[float, ...]:
        return tuple(-math.log(VOCABULARY) + rng.uniform(-0.5, 0.5) for _ in range(n))

    rows = []
    for i, (prompt, output) in enumerate(lengths):
        sample = Sample(f"e{i}", tokens(prompt), tokens(output), near(output), rng.random())
        rows.append(Row(sample, near(output), tuple(rng.uniform(-1, 2) for _ in range(output))))
    return rows


def _alone(model: LlamaForCausalLM, sample: Sample) -> torch.Tensor:
    logits = model(torch.tensor([sample.prompt_tokens + sample.output_tokens])).logits[0]
    logprobs = torch.log_softmax(logits[len(sample.prompt_tokens) - 1 : -1], -1)
    return logprobs.gather(1, torch.tensor(sample.output_tokens)[:, None])[:, 0]


def _reference(model: LlamaForCausalLM, rows: Sequence[Row]) -> None:
    """Leaves the gradient of the loss, as it is written down, in the model: row by row, sum / kept tokens."""
    model.zero_grad()
    kept = sum(len(row.advantages) for row in rows)
    for row in rows:
        new = _alone(model, row.sample)
        old, sampler, advantage = (
            torch.tensor(x, dtype=torch.float64)
            for x in (row.old_logprobs, row.sample.sampler_logprobs, row.advantages)
        )
        ratio, weight = torch.exp(new - old), torch.exp(old - sampler).clamp(max=LEARN.tis_cap)
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - LEARN.clip, 1 + LEARN.clip) * advantage)
        (-(weight * surrogate).sum() / kept).backward()


def _plain(directory: Path) -> LlamaForCausalLM:
    """float64, no packing, no sharding."""
    return LlamaForCausalLM.from_pretrained(directory, dtype=torch.float64, attn_implementation="eager")


def _gradients_of(state: Path, model: LlamaForCausalLM) -> list[torch.Tensor]:
    """The gradient of the solver's first optimizer step, per parameter, read out of the ranks' first moments.

    ZeRO-3 gives rank r the r-th half of each parameter, padded.
    """
    ranks = [torch.load(state / f"rank{r}.pt", weights_only=True)["solver"]["optimizer"]["state"] for r in (0, 1)]
    flat = [torch.cat([entry["exp_avg"] for _, entry in sorted(rank.items())]) for rank in ranks]
    parts: list[torch.Tensor] = []
    at = 0
    for parameter in model.parameters():
        half = -(-parameter.numel() // 2)
        parts.append(torch.cat([f[at : at + half] for f in flat])[: parameter.numel()] / (1 - LEARN.betas[0]))
        at += half
    return parts


RAGGED = [(5, 900), (7, 40), (3, 11), (9, 30), (4, 19)]


@pytest.mark.parametrize(
    ("lengths", "pack_tokens"),
    [
        pytest.param(RAGGED, 1000, id="900 tokens against 100, packed"),
        pytest.param(RAGGED, 905, id="900 against 100, as full as can be"),
        pytest.param([(5, 60), (7, 40), (3, 11), (9, 30), (4, 19), (4, 2), (4, 1)], 65, id="many micro-batches"),
        pytest.param([(6, 20)], 1000, id="one row, a rank of fillers"),
    ],
)
def test_the_gradient_is_that_of_one_process_in_float64(
    group: Group, tmp_path: Path, lengths: list[tuple[int, int]], pack_tokens: int
) -> None:
    """Invariant 5, and the step that AdamW makes of it."""
    rows = _rows(lengths)
    model = _plain(group.base)
    _reference(model, rows)
    group.trainer._config = ENGINE.model_copy(update={"pack_tokens": pack_tokens})
    stats = group.trainer.update("solver", rows, first_update=0, seed=0)
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert stats.grad_norm == pytest.approx(float(expected.norm()), rel=1e-4)
    assert stats.tokens == sum(output for _, output in lengths)
    assert stats.fillers == (1 if len(lengths) == 1 else stats.fillers)
    group.trainer.save(tmp_path / "state")
    found = torch.cat([g.flatten() for g in _gradients_of(tmp_path / "state", model)])
    assert torch.allclose(found.double(), expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate(LEARN, 0, TOTAL), betas=LEARN.betas, weight_decay=0.0
    )
    optimizer.step()
    published = group.trainer.publish("solver", 1, tmp_path / "published")
    with torch.no_grad():
        old, new, want = (
            torch.cat([p.flatten() for p in m.parameters()])
            for m in (_plain(group.base), _plain(Path(published.path)), model)
        )
        # Adam's first step is lr times the gradient's sign; where that is nearly 0, float32 and float64 may differ.
        assert torch.quantile((new - want).abs(), 0.99) < 0.01 * LEARN.lr
        assert float((new - old).abs().max()) == pytest.approx(LEARN.lr, rel=0.01)


def test_logprobs_are_those_of_plain_transformers(group: Group, tmp_path: Path) -> None:
    """Invariants 7 and 8: by the policy as it is, and by its base, which stays what it was."""
    rows = _rows([(5, 20), (9, 3), (2, 31)], seed=3)
    samples = [row.sample for row in rows]
    old, reference = group.trainer.logprobs("coder", samples)
    assert old == reference  # version 0 is the base, on the same path, to the bit
    with torch.no_grad():
        plain = [_alone(_plain(group.base), s).tolist() for s in samples]
    for found, want in zip(old, plain, strict=True):
        assert found == pytest.approx(want, abs=2e-5)
    group.trainer.update("coder", rows, first_update=0, seed=0)
    new, again = group.trainer.logprobs("coder", samples)
    assert again == reference
    assert new != old
    published = group.trainer.publish("coder", 1, tmp_path / "coder")
    weights.check(published)
    with torch.no_grad():
        plain = [_alone(_plain(Path(published.path)), s).tolist() for s in samples]
    for found, want in zip(new, plain, strict=True):
        assert found == pytest.approx(want, abs=2e-5)
    other = group.trainer.publish("solver", 1, tmp_path / "solver")
    assert other.digest == weights.digest(tmp_path / "solver") != published.digest
    assert group.trainer.logprobs("solver", samples)[0] == old  # the other role has its own weights


def test_restored_goes_on_to_the_bit(group: Group, base: Path, tmp_path: Path) -> None:
    """Invariant 9: update, save, update == restore into a new group, update."""
    first, second = _rows([(5, 20), (9, 3), (2, 31)], seed=4), _rows([(3, 12), (8, 8)], seed=5)
    for role in ROLES:
        group.trainer.update(role, first, first_update=0, seed=0)
    group.trainer.save(tmp_path / "state")
    for role in ROLES:
        group.trainer.update(role, second, first_update=1, seed=1)
    want = [group.trainer.publish(role, 2, tmp_path / "want" / role).digest for role in ROLES]
    other = _start(base)
    try:
        other.ready(ENGINE.start_timeout_s)
        other.restore(tmp_path / "state")
        for role in ROLES:
            other.update(role, second, first_update=1, seed=1)
        assert [other.publish(role, 2, tmp_path / "found" / role).digest for role in ROLES] == want
        with pytest.raises(ConfigError, match="holds no trainer state"):
            other.restore(tmp_path)
    finally:
        other.stop()


def test_what_is_not_finite_stops_the_group(group: Group, tmp_path: Path) -> None:
    """The last test of this group. Nothing is published after a loss that is not finite."""
    rows = _rows([(5, 20), (9, 3)])
    broken = [replace(rows[0], advantages=(math.nan,) * 20), rows[1]]
    with pytest.raises(EngineError, match="solver: loss or gradient is not finite"):
        group.trainer.update("solver", broken, first_update=0, seed=0)
    with pytest.raises(EngineError, match="its process died"):
        group.trainer.publish("solver", 1, tmp_path / "out")
    assert not (tmp_path / "out").exists()
