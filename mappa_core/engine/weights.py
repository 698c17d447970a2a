"""A policy as a Hugging Face directory: published whole or not at all, and believed only after its digest is checked.

Refuses to publish a weight that is not finite, and a base directory without weights, config or tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mappa_core.config import ConfigError
from mappa_core.types import Policy

if TYPE_CHECKING:
    import torch

WEIGHTS = "model.safetensors"
_COPIED = ("*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")
_NOT_COPIED = ("model.safetensors.index.json",)


def digest(directory: Path) -> str:
    """BLAKE2b-128 over the bytes of the weights (shards by name), then of config.json; ConfigError where one lacks."""
    shards, config = sorted(directory.glob("*.safetensors")), directory / "config.json"
    if not shards or not config.is_file():
        raise ConfigError(f"{directory} is no policy: it needs config.json and *.safetensors")
    total = hashlib.blake2b(digest_size=16)
    for path in [*shards, config]:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                total.update(block)
    return total.hexdigest()


def check(policy: Policy) -> None:
    """ConfigError where the directory of `policy` does not hold the weights its digest names."""
    found = digest(Path(policy.path))
    if found != policy.digest:
        raise ConfigError(
            f"{policy.path} holds {found}, not version {policy.version} of {policy.role} ({policy.digest}): "
            "remove it and resume"
        )


def sizes(directory: Path) -> tuple[int, ...]:
    """Elements of each tensor of `directory`, from the headers alone."""
    shards = sorted(directory.glob("*.safetensors"))
    return tuple(n for path in shards for n in _header_sizes(path))


def publish(
    role: str,
    version: int,
    tensors: Mapping[str, torch.Tensor],
    base: Path,
    directory: Path,
    rename: Callable[[Path, Path], None] = os.rename,
) -> Policy:
    """Writes `tensors` with the config and tokenizer of `base` as `directory`, by rename, and returns the policy.

    Whoever opens `directory` finds all of it or nothing. One that is already there is replaced, so that a step can be
    done again. ValueError names a tensor with a value that is not finite; ConfigError a base that lacks a file.
    """
    _refuse_not_finite(role, tensors)
    for name in ("config.json", "tokenizer_config.json"):
        if not (base / name).is_file():
            raise ConfigError(f"{base} has no {name}: give a model directory with config and tokenizer")
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}."))
    try:
        _write(staging, tensors, base)
        policy = Policy(role, version, str(directory), digest(staging))
        swap(staging, directory, rename)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return policy


def swap(staging: Path, directory: Path, rename: Callable[[Path, Path], None] = os.rename) -> None:
    """Makes the finished folder `staging` appear as its sibling `directory`, in place of one that is there."""
    for path in sorted(p for p in staging.rglob("*") if p.is_file()):
        _sync(path)
    _sync(staging)
    if directory.exists():
        aside = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}.old."))
        directory.rename(aside / "was")
        rename(staging, directory)
        shutil.rmtree(aside)
    else:
        rename(staging, directory)
    _sync(directory.parent)


def _write(staging: Path, tensors: Mapping[str, torch.Tensor], base: Path) -> None:
    from safetensors.torch import save_file  # here: whoever only checks a digest needs no torch

    staging.chmod(0o755)
    save_file(dict(tensors), staging / WEIGHTS, metadata={"format": "pt"})
    (staging / WEIGHTS).chmod(0o644)
    for source in sorted({p for pattern in _COPIED for p in base.glob(pattern)}):
        if source.name not in _NOT_COPIED:
            shutil.copyfile(source, staging / source.name)


def _refuse_not_finite(role: str, tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{role}: {name} is not finite; nothing is published: lower learn.lr and resume")


def _header_sizes(path: Path) -> list[int]:
    """A safetensors file starts with the length of a JSON header, which has every shape."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
    return [math.prod(shape) for shape in shapes]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
