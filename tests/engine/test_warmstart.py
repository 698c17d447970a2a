import random
from pathlib import Path

import pytest
import torch

from mappa_core.engine import warmstart, weights
from mappa_core.engine.warmstart import Recipe, Shape, TokenRow

SHAPE = Shape(vocabulary=12, eos=1, pad=0, hidden=32, layers=1, max_len=16)


def rows(n: int = 60) -> list[TokenRow]:
    """Prompt 2 d 3, response d 1: copy one digit of 4..11."""
    rng = random.Random(0)
    digits = [rng.randrange(4, 12) for _ in range(n)]
    return [TokenRow((2, d, 3, d, 1), (0.1, 0.1, 0.1, 1, 1)) for d in digits]


def built(directory: Path, recipe: Recipe) -> str:
    warmstart.train(rows(), SHAPE, recipe, directory)
    return weights.digest(directory)


def test_the_same_config_gives_the_same_digest(tmp_path: Path) -> None:
    recipe = Recipe(steps=4, seed=3, batch=8)
    first = built(tmp_path / "a", recipe)
    torch.rand(5)
    assert built(tmp_path / "b", recipe) == first
    assert built(tmp_path / "c", Recipe(steps=4, seed=4, batch=8)) != first


def test_it_leaves_torch_as_it_was(tmp_path: Path) -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    built(tmp_path / "a", Recipe(steps=1, seed=0, batch=8))
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.are_deterministic_algorithms_enabled()


def test_it_learns_and_the_ceiling_says_so(tmp_path: Path) -> None:
    losses: list[float] = []

    def progress(done: int, total: int, loss: float) -> None:
        assert (done, total) == (len(losses) + 1, 120)
        losses.append(loss)

    warmstart.train(rows(), SHAPE, Recipe(steps=120, seed=0, batch=16, warmup=10), tmp_path / "a", progress)
    assert losses[-1] < 0.5 * losses[0]
    assert {p.name for p in (tmp_path / "a").iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
    }
    digits = frozenset(range(4, 12))
    assert warmstart.copied(tmp_path / "a", rows(), digits) == 1.0
    wrong = [TokenRow((2, 4, 3, 5, 1), (0.1, 0.1, 0.1, 1, 1)), TokenRow((2, 4, 3, 4, 1), (0.1, 0.1, 0.1, 1, 1))]
    assert warmstart.copied(tmp_path / "a", wrong, digits) == 0.5
    with pytest.raises(ValueError, match="no row has a digit"):
        warmstart.copied(tmp_path / "a", wrong, frozenset())


def test_the_loss_is_a_weighted_mean_however_rows_are_padded() -> None:
    torch.manual_seed(0)
    model = warmstart.LlamaForCausalLM(warmstart._config(SHAPE)).float()
    batch = [TokenRow((2, 5, 3, 5, 1), (0.1, 0.1, 0.1, 1, 1)), TokenRow((2, 7, 1), (0.1, 0.5, 1)), rows()[0]]
    loss = warmstart._backward(model, batch, pad=0)
    total = weight = 0.0
    for row in batch:
        logprobs = model(torch.tensor([row.tokens])).logits[0].double().log_softmax(-1)
        for i in range(1, len(row.tokens)):
            total -= row.weights[i] * logprobs[i - 1, row.tokens[i]].item()
            weight += row.weights[i]
    assert loss == pytest.approx(total / weight, rel=1e-5)


def test_what_can_not_be_learned_from_is_refused(tmp_path: Path) -> None:
    recipe = Recipe(steps=1, seed=0)
    for bad, message in (
        ([], "no demonstrations"),
        ([TokenRow((1, 2), (1, 0))], "demonstration 0 has no token to learn"),
        ([*rows(1), TokenRow((2,) * 17, (1,) * 17)], "demonstration 1 has 17 tokens; the model holds 16"),
    ):
        with pytest.raises(ValueError, match=message):
            warmstart.train(bad, SHAPE, recipe, tmp_path / "a")
    assert not (tmp_path / "a").exists()
