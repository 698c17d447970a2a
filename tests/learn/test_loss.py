"""The loss by hand, and packing against each row alone."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from mappa_core.learn.batch import Targets, attention, pack, targets, unpack
from mappa_core.learn.loss import clipped_loss, token_logprobs
from mappa_core.types import Row, Sample

AttentionInterface.register("packed_rows", attention)


def _targets(old: list[float], sampler: list[float], advantages: list[float]) -> Targets:
    return Targets(*(torch.tensor(x) for x in (old, sampler, advantages)))


def test_the_loss_by_hand() -> None:
    """Invariant 4. Ratios 1.5, 1.5, 0.5, 1; advantages 1, -1, -1, 2; clip 0.2.

    min(1.5, 1.2) = 1.2; min(-1.5, -1.2) = -1.5; min(-0.5, -0.8) = -0.8; 2.
    """
    new = torch.tensor([math.log(1.5), math.log(1.5), math.log(0.5), 0.0])
    found = clipped_loss(new, _targets([0.0] * 4, [0.0] * 4, [1.0, -1.0, -1.0, 2.0]), 0.2, 2.0)
    assert found.loss.item() == pytest.approx(-(1.2 - 1.5 - 0.8 + 2.0))
    assert (found.clipped.item(), found.capped.item()) == (3, 0)
    expected = 2 * (0.5 - math.log(1.5)) + (-0.5 - math.log(0.5))
    assert found.kl.item() == pytest.approx(expected, rel=1e-5)


def test_importance_weights_are_truncated_and_carry_no_gradient() -> None:
    """Invariant 7: exp(old - sampler) is 4, capped at 2; 0.5; 1."""
    new = torch.zeros(3, requires_grad=True)
    sampler = [-math.log(4.0), math.log(2.0), 0.0]
    found = clipped_loss(new, _targets([0.0] * 3, sampler, [1.0, 1.0, 3.0]), 0.2, 2.0)
    assert found.loss.item() == pytest.approx(-(2.0 + 0.5 + 3.0))
    assert found.capped.item() == 1
    found.loss.backward()
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([-2.0, -0.5, -3.0])


def test_a_clipped_token_has_no_gradient() -> None:
    new = torch.tensor([math.log(1.5)], requires_grad=True)
    clipped_loss(new, _targets([0.0], [0.0], [1.0]), 0.2, 2.0).loss.backward()
    assert new.grad is not None
    assert new.grad.item() == 0


def _samples(seed: int, vocabulary: int = 50) -> list[Sample]:
    rng = random.Random(seed)

    def tokens(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocabulary) for _ in range(n))

    lengths = [(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(6)]
    return [Sample(str(i), tokens(p), tokens(t), (-1.0,) * t, 1.0) for i, (p, t) in enumerate(lengths)]


def test_only_output_tokens_carry_gradient() -> None:
    """The logits of a position predict the next token: those of the outputs, and no others, get a gradient."""
    samples = _samples(0)
    packed = pack(samples)
    logits = torch.zeros(1, packed.bounds[-1], 50, requires_grad=True)

    def model(logits_to_keep: torch.Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=logits[:, logits_to_keep])

    token_logprobs(model, packed).sum().backward()
    assert logits.grad is not None
    touched = logits.grad[0].abs().sum(-1) > 0
    expected = [
        f for s in samples for f in [False] * (len(s.prompt_tokens) - 1) + [True] * len(s.output_tokens) + [False]
    ]
    assert touched.tolist() == expected
    hit = logits.grad[0][touched].argmax(-1)  # the gradient of a logprob is positive at its own token only
    assert hit.tolist() == [token for s in samples for token in s.output_tokens]


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_packed_rows_do_not_see_each_other(kv_heads: int) -> None:
    """Invariant 5: the logprobs of a packed row, and its gradient, are those of the row alone in a plain model."""
    torch.manual_seed(0)
    settings = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(settings).double().eval()
    samples = _samples(1)
    model.set_attn_implementation("packed_rows")
    found = token_logprobs(model, pack(samples))
    (-found.sum()).backward()
    packed_gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model.set_attn_implementation("eager")
    alone = []
    for s in samples:
        logits = model(torch.tensor([s.prompt_tokens + s.output_tokens])).logits[0, len(s.prompt_tokens) - 1 : -1]
        alone.append(torch.log_softmax(logits, -1).gather(1, torch.tensor(s.output_tokens)[:, None])[:, 0])
    (-torch.cat(alone).sum()).backward()
    assert found.detach().numpy() == pytest.approx(torch.cat(alone).detach().numpy(), abs=1e-5)
    for a, p in zip(packed_gradients, model.parameters(), strict=True):
        assert p.grad is not None
        assert torch.allclose(
            a, p.grad, atol=1e-5 * float(p.grad.abs().max()), rtol=1e-3
        )  # norms and softmax are float32


def test_targets_and_unpack_keep_the_order() -> None:
    rows = [Row(s, s.sampler_logprobs, tuple(float(t) for t in s.output_tokens)) for s in _samples(2)]
    samples = [row.sample for row in rows]
    assert torch.equal(targets(rows).advantages.long(), pack(samples).targets)
    assert unpack(targets(rows).advantages, samples) == [row.advantages for row in rows]


def test_attention_without_bounds_is_refused() -> None:
    query = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match="packed attention takes one sequence and its bounds"):
        attention(torch.nn.Identity(), query, query, query, None, bounds=(0, 2))


def test_a_sample_without_output_is_refused() -> None:
    with pytest.raises(ValueError, match="action x: 1 prompt and 0 output tokens"):
        pack([Sample("x", (1,), (), (), 0.0)])
