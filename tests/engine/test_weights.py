"""Publishing is all or nothing, and a policy is what its digest says."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mappa_core.config import ConfigError
from mappa_core.engine import weights

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    directory = tmp_path / "base"
    directory.mkdir()
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json", "generation_config.json"):
        (directory / name).write_text("{}")
    (directory / "model-00001-of-00001.safetensors").write_bytes(b"old")
    (directory / "model.safetensors.index.json").write_text("{}")
    return directory


def test_published_is_weights_config_tokenizer_and_their_digest(base: Path, tmp_path: Path) -> None:
    policy = weights.publish("solver", 3, TENSORS, base, tmp_path / "out" / "3")
    names = {p.name for p in Path(policy.path).iterdir()}
    assert names == {
        "model.safetensors",
        "config.json",
        "tokenizer_config.json",
        "tokenizer.json",
        "generation_config.json",
    }
    loaded = load_file(Path(policy.path) / "model.safetensors")
    assert all(torch.equal(loaded[k], v) for k, v in TENSORS.items())
    data = (Path(policy.path) / "model.safetensors").read_bytes() + b"{}"
    assert policy.digest == hashlib.blake2b(data, digest_size=16).hexdigest()
    weights.check(policy)
    assert sorted(weights.sizes(Path(policy.path))) == [2, 6]


def test_equal_weights_have_equal_digests(base: Path, tmp_path: Path) -> None:
    first = weights.publish("solver", 1, TENSORS, base, tmp_path / "x")
    again = weights.publish("solver", 1, dict(reversed(TENSORS.items())), base, tmp_path / "y")
    assert first.digest == again.digest


def test_killed_before_the_rename_nothing_is_there(base: Path, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def kill(source: Path, target: Path) -> None:
        assert (source / "model.safetensors").is_file()
        assert not target.exists()
        raise Killed

    with pytest.raises(Killed):
        weights.publish("solver", 1, TENSORS, base, tmp_path / "out", rename=kill)
    assert not (tmp_path / "out").exists()


def test_a_step_done_again_replaces_what_it_published(base: Path, tmp_path: Path) -> None:
    weights.publish("solver", 1, {"a": torch.zeros(1)}, base, tmp_path / "out")
    policy = weights.publish("solver", 1, TENSORS, base, tmp_path / "out")
    weights.check(policy)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base", "out"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_not_published(base: Path, tmp_path: Path, bad: float) -> None:
    with pytest.raises(ValueError, match="solver: b is not finite; nothing is published"):
        weights.publish("solver", 1, {**TENSORS, "b": torch.tensor([1.0, bad])}, base, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_changed_weights_are_noticed(base: Path, tmp_path: Path) -> None:
    policy = weights.publish("solver", 1, TENSORS, base, tmp_path / "out")
    with pytest.raises(ConfigError, match="not version 1 of solver"):
        weights.check(replace(policy, digest="0" * 32))


def test_a_directory_that_is_no_policy(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no policy: it needs config\.json"):
        weights.digest(tmp_path)
    (base / "tokenizer_config.json").unlink()
    with pytest.raises(ConfigError, match=r"has no tokenizer_config\.json"):
        weights.publish("solver", 1, TENSORS, base, tmp_path / "out")
