"""The sampler on real Ray and vLLM, against transformers on the same weights."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mappa_core.config import Engine
from mappa_core.engine import fleet, weights
from mappa_core.engine.calls import EngineError
from mappa_core.engine.fleet import Fleet
from mappa_core.engine.sampler import LIMITS, Sampler, check_served
from mappa_core.types import Generation, Policy, Request

pytestmark = pytest.mark.stack

MAX_LEN = 96
EOS = 2
ENGINE = Engine.model_validate({"max_len": MAX_LEN, "kv_cache_gib": 0.02, "start_timeout_s": 240, "call_timeout_s": 60})
PROMPT = tuple((7 * i) % 90 + 3 for i in range(40))  # more than a block of the cache
PROBE = tuple((11 * i) % 90 + 3 for i in range(40))


class NoTrainer:
    def ready(self, timeout_s: float) -> None:
        assert timeout_s > 0

    def stop(self) -> None:
        pass


class Models(NamedTuple):
    """The same architecture twice, with a tied head; a third has other shapes."""

    policies: tuple[Policy, Policy]
    stranger: Policy
    peers: tuple[LlamaForCausalLM, LlamaForCausalLM]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    root = tmp_path_factory.mktemp("models")
    peers = tuple(_model(root / str(seed), seed, hidden=96) for seed in (0, 1))
    _model(root / "wide", 0, hidden=128)
    roles = ("solver", "coder")
    made = [Policy(role, 0, str(root / str(i)), weights.digest(root / str(i))) for i, role in enumerate(roles)]
    stranger = Policy("verifier", 0, str(root / "wide"), weights.digest(root / "wide"))
    return Models((made[0], made[1]), stranger, (peers[0], peers[1]))


def _model(directory: Path, seed: int, hidden: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    settings = LlamaConfig(
        vocab_size=97,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        eos_token_id=EOS,
        initializer_range=0.15,  # peaked enough that models differ
    )
    model = LlamaForCausalLM(settings).float().eval()
    model.save_pretrained(directory)
    return model


@pytest.fixture(scope="module")
def running(models: Models) -> Iterator[Fleet[NoTrainer]]:
    told: list[str] = []
    start = time.monotonic()
    base = Path(models.policies[0].path)
    with fleet.start(base, ENGINE, lambda _cpus, _threads: NoTrainer(), told.append) as started:
        assert [line.split()[0] for line in told] == ["starting", "waiting", "waiting"]
        print(f"start-up {time.monotonic() - start:.1f} s")
        yield started


@pytest.fixture
def sampler(running: Fleet[NoTrainer], models: Models) -> Sampler:
    running.sampler.serve(models.policies)
    return running.sampler


def test_tokens_and_logprobs_are_those_of_transformers(sampler: Sampler, models: Models) -> None:
    for policy, peer in zip(models.policies, models.peers, strict=True):
        [made] = _generate(sampler, policy.role, [PROMPT], temperature=0.0)
        expected = _logprobs(peer, PROMPT, made.tokens)
        assert made.tokens == _greedy(peer, PROMPT, len(made.tokens))
        assert made.logprobs == pytest.approx(expected, abs=1e-4)
        assert made.policy == policy.digest


def test_logprobs_at_another_temperature_are_still_those_of_the_model(sampler: Sampler, models: Models) -> None:
    [made] = _generate(sampler, "solver", [PROMPT], temperature=0.6)
    assert made.logprobs == pytest.approx(_logprobs(models.peers[0], PROMPT, made.tokens), abs=1e-4)


def test_a_swap_back_and_forth_leaves_no_trace(sampler: Sampler) -> None:
    first, other, again = (_generate(sampler, role, [PROMPT]) for role in ("solver", "coder", "solver"))
    assert first[0].tokens != other[0].tokens
    assert again == first


def test_a_prompt_that_another_policy_has_cached_is_computed_anew(sampler: Sampler, models: Models) -> None:
    """Invariant 8: the first block of PROMPT is in the cache, computed by the solver."""
    _generate(sampler, "solver", [PROMPT])
    [made] = _generate(sampler, "coder", [PROMPT])
    assert made.logprobs == pytest.approx(_logprobs(models.peers[1], PROMPT, made.tokens), abs=1e-4)


def test_probe_is_the_logprobs_of_what_is_served(sampler: Sampler, models: Models) -> None:
    """Invariant 8, with transformers as the trainer: right after a swap, and once more on what is cached."""
    trainer = [_logprobs(peer, PROBE[:1], PROBE[1:]) for peer in models.peers]
    for now, before in ((0, 1), (1, 0), (1, 0), (0, 1)):
        policy = models.policies[now]
        said = sampler.probe(policy.role, PROBE)
        gap = check_served(policy, said, trainer[now], trainer[before], LIMITS["float32"])
        assert gap < 1e-5
        with pytest.raises(EngineError, match="did the swap fail"):
            check_served(policy, said, trainer[before], None, LIMITS["float32"])


def test_seeds_decide(sampler: Sampler) -> None:
    same = _generate(sampler, "solver", [PROMPT] * 4, seeds=[5, 5, 6, 7])
    assert same[0].tokens == same[1].tokens
    assert len({made.tokens for made in same}) == 3
    assert _generate(sampler, "solver", [PROMPT] * 4, seeds=[5, 5, 6, 7]) == same


def test_an_end_token_is_kept_and_a_limit_is_told(sampler: Sampler) -> None:
    stop = set(range(20))
    ended = _generate(sampler, "solver", [PROMPT] * 8, eos=tuple(stop), limit=30)
    assert {made.finish_reason for made in ended} == {"stop"}
    for made in ended:
        assert made.tokens[-1] in stop
        assert not stop & set(made.tokens[:-1])
        assert len(made.logprobs) == len(made.tokens)
    [cut] = _generate(sampler, "solver", [PROMPT], eos=(), limit=5)
    assert (len(cut.tokens), cut.finish_reason) == (5, "length")
    [full] = _generate(sampler, "solver", [PROMPT], eos=(), limit=1000)  # the model's own end token is not ours
    assert (len(full.tokens), full.finish_reason) == (MAX_LEN - len(PROMPT), "length")


def test_a_wave_that_exceeds_cache_and_prefill_is_served_in_order(sampler: Sampler) -> None:
    prompts = [tuple((i * 13 + j * 5) % 90 + 3 for j in range(20 + i % 50)) for i in range(300)]
    before = sampler.usage
    made = _generate(sampler, "solver", prompts, limit=4, eos=())
    alone = _generate(sampler, "solver", prompts[299:], limit=4, eos=(), seeds=[299])
    assert made[299].tokens == alone[0].tokens
    assert sampler.usage.prompt_tokens - before.prompt_tokens == sum(map(len, [*prompts, prompts[299]]))
    assert sampler.usage.output_tokens - before.output_tokens == 301 * 4
    assert sampler.usage.busy_seconds > before.busy_seconds


def test_what_cannot_be_served_is_one_line(sampler: Sampler, models: Models) -> None:
    with pytest.raises(EngineError, match=r"weights differ|config.json differ"):
        sampler.serve((models.stranger,))
    solver = models.policies[0]
    forged = Policy("solver", 1, solver.path, "0" * 32)
    with pytest.raises(EngineError, match="not version 1 of solver"):
        sampler.serve((forged,))
    with pytest.raises(EngineError, match=r"serves .*, not 'verifier'"):
        _generate(sampler, "verifier", [PROMPT])
    with pytest.raises(EngineError, match=r"a prompt of 96 tokens; engine.max_len is 96"):
        _generate(sampler, "solver", [tuple(range(3, 3 + MAX_LEN - 6)) + PROMPT[:6]])
    assert _generate(sampler, "solver", [PROMPT])  # and it goes on


def test_the_sampler_is_small_and_its_death_is_told(running: Fleet[NoTrainer], models: Models) -> None:
    """Last: it ends the sampler."""
    engines = [p for p in running.session.processes() if p.name().startswith("ray::_Engine")]
    assert len(engines) == 1
    resident = engines[0].memory_full_info().pss / 2**30
    print(f"sampler PSS {resident:.2f} GiB")
    assert resident < 1.5
    engines[0].kill()
    psutil.wait_procs(engines, timeout=20)
    with pytest.raises(EngineError, match="process died"):
        running.sampler.serve(models.policies)


def _generate(
    sampler: Sampler,
    role: str,
    prompts: list[tuple[int, ...]],
    *,
    temperature: float = 1.0,
    eos: tuple[int, ...] = (EOS,),
    limit: int = 16,
    seeds: list[int] | None = None,
) -> list[Generation]:
    numbers = itertools.count() if seeds is None else iter(seeds)
    requests = [Request(f"e#{i}", role, 0, p, next(numbers)) for i, p in enumerate(prompts)]
    return asyncio.run(sampler.generate(role, requests, limit, temperature, eos))


def _logprobs(model: LlamaForCausalLM, prompt: tuple[int, ...], output: tuple[int, ...]) -> tuple[float, ...]:
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *output]])).logits[0]  # (P + T, V)
    rows = torch.log_softmax(logits.double(), -1)[len(prompt) - 1 : -1]  # (T, V)
    return tuple(rows[i, token].item() for i, token in enumerate(output))


def _greedy(model: LlamaForCausalLM, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    tokens = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tuple(tokens[len(prompt) :])
