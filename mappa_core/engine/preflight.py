"""What will not fit, said before anything is allocated: model, lengths, memory, disk, shared memory, processor.

Reads small files and counters only, well under a second. Refuses to guess in favour of the run: an estimate above what
is free is an error. The formula is `estimate`; docs and messages name its terms.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from mappa_core.config import ConfigError, ExperimentConfig, LabModel, LocalModel
from mappa_core.engine import gguf

GIB = 2**30
SAMPLER_GIB = 1.1
"""Resident memory of the sampler's process without weights and cache: torch, vLLM."""
RANK_GIB = 1.0
"""The same of a trainer rank: torch, DeepSpeed, gloo."""
REST_GIB = 1.2
"""Driver, Ray's own processes, Prefect, MLflow."""
SHM = Path("/dev/shm")  # noqa: S108  # the kernel's shared memory, not a place for temporary files
SHM_GIB = 0.5
"""Shared memory: Ray's object store and DeepSpeed's buffers."""
DISK_GIB = 0.5
"""Episodes, verdicts, logs, tracking."""
STATE_BYTES = 18
"""A parameter while it is trained: weights, gradients, float32 master and two Adam moments."""
SAVED_BYTES = 16
"""A parameter in a checkpoint: master, moments and the published weights."""
HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""What vLLM's CPU attention can do."""


class Machine(NamedTuple):
    """What there is to use, in bytes where it is an amount."""

    memory: int
    disk: int
    shm: int
    cpus: int
    cpu_flags: frozenset[str]
    cuda: bool


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a Llama-like model, what memory depends on."""

    parameters: int
    hidden: int
    layers: int
    kv_heads: int
    head_size: int
    vocabulary: int
    max_len: int | None
    """max_position_embeddings; None where the model does not say."""


SMOLLM2 = Shape(134_515_008, hidden=576, layers=30, kv_heads=3, head_size=64, vocabulary=49152, max_len=8192)
"""Of SmolLM2-135M: written down, because reading it from the package's file takes longer than a preflight may."""


class Estimate(NamedTuple):
    """Bytes a run will need at its peak."""

    sampler: int
    trainer: int
    rest: int
    disk: int

    @property
    def memory(self) -> int:
        """All processes together."""
        return self.sampler + self.trainer + self.rest


def preflight(
    config: ExperimentConfig, base: Path | None, run_dir: Path, policies: int, machine: Machine | None = None
) -> Estimate:
    """What the run will need; ConfigError says in one line what does not fit and what to do.

    `base`: the model's directory; None for a model that is made by us. `policies`: separately trained weights.
    `machine`: what there is; None measures this one.
    """
    machine = machine or measure(run_dir)
    _check_processor(config, machine)
    shape = _made(config) if base is None else _read(base)
    _check_lengths(config, shape)
    need = estimate(config, shape, policies)
    _check_room(config, need, machine)
    return need


def estimate(config: ExperimentConfig, shape: Shape, policies: int) -> Estimate:
    """Bytes at the peak, from above.

    sampler = SAMPLER_GIB + 2 x weights (a swap reads the next beside the last) + cache
    trainer = ranks x (RANK_GIB + whole weights, gathered + activations + logits) + policies x 18 B x parameters, and
              once the weights again, for the reference
    disk    = policies x parameters x (2 checkpoints x 16 B) + DISK_GIB: the old one goes after the new one is proven
    """
    width = 4 if config.engine.dtype == "float32" else 2
    weights = shape.parameters * width
    kept = 2 if config.engine.gradient_checkpointing else 34
    tokens = config.engine.pack_tokens
    activations = tokens * shape.hidden * shape.layers * kept * width
    logits = tokens * shape.vocabulary * 4 * 3
    rank = int(RANK_GIB * GIB) + weights + activations + logits
    return Estimate(
        sampler=int((SAMPLER_GIB + config.engine.kv_cache_gib) * GIB) + 2 * weights,
        trainer=config.engine.ranks * rank + policies * STATE_BYTES * shape.parameters + weights,
        rest=int(REST_GIB * GIB),
        disk=policies * shape.parameters * SAVED_BYTES * 2 + int(DISK_GIB * GIB),
    )


def measure(run_dir: Path) -> Machine:
    """This machine, with the limits of the control group we run in; `run_dir` need not exist yet."""
    place = next(p for p in (run_dir.absolute(), *run_dir.absolute().parents) if p.exists())
    return Machine(
        memory=min([psutil.virtual_memory().available, *_cgroup_room(Path("/sys/fs/cgroup"))]),
        disk=psutil.disk_usage(str(place)).free,
        shm=psutil.disk_usage(str(SHM)).free if SHM.is_dir() else 0,
        cpus=len(os.sched_getaffinity(0)),
        cpu_flags=_cpu_flags(Path("/proc/cpuinfo")),
        cuda=Path("/dev/nvidia0").exists(),
    )


def _cgroup_room(root: Path) -> Iterable[int]:
    """Bytes left under the limit of our control group, version 2 and 1, where one is set; page cache counts as free."""
    for limit, used, stat, key in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ):
        text = (root / limit).read_text().strip() if (root / limit).is_file() else "max"
        if text == "max" or int(text) > 2**60:  # how version 1 spells "no limit"
            continue
        rows = dict(line.split() for line in (root / stat).read_text().splitlines())
        yield int(text) - int((root / used).read_text()) + int(rows.get(key, 0))


def _cpu_flags(cpuinfo: Path) -> frozenset[str]:
    for line in cpuinfo.read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _check_processor(config: ExperimentConfig, machine: Machine) -> None:
    if config.engine.device == "cuda" and not machine.cuda:
        raise ConfigError("engine.device = cuda, but there is no /dev/nvidia0: set engine.device=cpu")
    if config.engine.device == "cpu" and "avx2" not in machine.cpu_flags:
        raise ConfigError("vLLM on CPU needs AVX2, which this processor lacks: use another machine")


def _check_lengths(config: ExperimentConfig, shape: Shape) -> None:
    engine = config.engine
    if shape.max_len is not None and engine.max_len > shape.max_len:
        raise ConfigError(
            f"engine.max_len = {engine.max_len}, but the model ends at {shape.max_len} tokens: "
            f"set engine.max_len={shape.max_len}"
        )
    if config.collect.max_new_tokens >= engine.max_len:
        raise ConfigError(
            f"collect.max_new_tokens = {config.collect.max_new_tokens} leaves no room for a prompt in engine.max_len = "
            f"{engine.max_len}: raise engine.max_len"
        )
    if engine.device == "cpu" and shape.head_size not in HEAD_SIZES:
        raise ConfigError(f"the model's head size {shape.head_size} is not one vLLM's CPU kernels know: {HEAD_SIZES}")
    token = 2 * shape.layers * shape.kv_heads * shape.head_size * (4 if engine.dtype == "float32" else 2)
    need = (engine.max_len + 64) * token / GIB  # a block of rounding and vLLM's null block
    if need > engine.kv_cache_gib:
        raise ConfigError(
            f"engine.kv_cache_gib = {engine.kv_cache_gib:g} holds no sequence of engine.max_len = {engine.max_len}: "
            f"set engine.kv_cache_gib={need + 0.005:.2f} or more"
        )


def _check_room(config: ExperimentConfig, need: Estimate, machine: Machine) -> None:
    if need.memory > machine.memory:
        raise ConfigError(
            f"needs about {_gib(need.memory)} of memory (sampler {_gib(need.sampler)}, {config.engine.ranks} ranks "
            f"{_gib(need.trainer)}), {_gib(machine.memory)} are free: lower engine.ranks, engine.pack_tokens or "
            f"engine.kv_cache_gib, or close programs"
        )
    if need.disk > machine.disk:
        raise ConfigError(
            f"needs about {_gib(need.disk)} on disk for checkpoints, {_gib(machine.disk)} are free: give another --dir"
        )
    if machine.shm < SHM_GIB * GIB:
        raise ConfigError(
            f"{SHM} has {_gib(machine.shm)} free, {SHM_GIB:g} GiB are needed: in Docker, add --shm-size=1g"
        )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _made(config: ExperimentConfig) -> Shape:
    """Of a model that we make ourselves, before it is made; ConfigError where that can't be done."""
    if isinstance(config.model, LocalModel):
        raise ConfigError("a model of type local needs its directory: set model.path")
    if isinstance(config.model, LabModel):
        return _lab_shape(config.model)
    gguf.package_file()
    return SMOLLM2


def _lab_shape(model: LabModel) -> Shape:
    """Of the tiny Llama: 3 x hidden wide, heads of 32, about 200 symbols."""
    hidden, layers = model.hidden, model.layers
    parameters = layers * 13 * hidden * hidden + 200 * hidden
    return Shape(parameters, hidden, layers, hidden // 32, 32, 200, LabModel.MAX_LEN)


def _read(base: Path) -> Shape:
    """Of a Hugging Face directory; ConfigError where it lacks something a run needs."""
    settings = _json(base, "config.json")
    if not any((base / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ConfigError(f"{base}: no tokenizer (tokenizer.json): copy the model's tokenizer files there")
    if not _has_template(base):
        raise ConfigError(f"{base}: no chat template (chat_template.jinja): use an instruction-tuned model")
    text = settings.get("text_config", settings)
    try:
        heads, hidden = text["num_attention_heads"], text["hidden_size"]
        return Shape(
            parameters=sum(_sizes(base)),
            hidden=hidden,
            layers=text["num_hidden_layers"],
            kv_heads=text.get("num_key_value_heads") or heads,
            head_size=text.get("head_dim") or hidden // heads,
            vocabulary=text["vocab_size"],
            max_len=text.get("max_position_embeddings"),
        )
    except KeyError as error:
        raise ConfigError(f"{base}/config.json: no {error}: only Llama-like decoder models are supported") from error


def _json(base: Path, name: str) -> dict[str, Any]:
    path = base / name
    if not path.is_file():
        raise ConfigError(f"{base}: no {name}: model.path must be a Hugging Face directory")
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}): fetch the model again") from error


def _has_template(base: Path) -> bool:
    if any((base / name).is_file() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    return (base / "tokenizer_config.json").is_file() and "chat_template" in _json(base, "tokenizer_config.json")


def _sizes(base: Path) -> Iterable[int]:
    """Elements of every weight, from the safetensors headers; each file must be as long as its header says."""
    index = base / "model.safetensors.index.json"
    names = sorted(set(_json(base, index.name)["weight_map"].values())) if index.is_file() else ["model.safetensors"]
    for name in names:
        path = base / name
        if not path.is_file():
            raise ConfigError(f"{base}: no {name}: weights must be safetensors; fetch or convert the model")
        yield from _header(path)


def _header(path: Path) -> Iterable[int]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        start = file.read(length) if length < 2**28 else b""
    try:
        entries = {k: v for k, v in json.loads(start).items() if k != "__metadata__"}
    except ValueError as error:
        raise ConfigError(f"{path} is not a safetensors file (a Git LFS pointer?): fetch the model again") from error
    end = 8 + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    if path.stat().st_size != end:
        raise ConfigError(f"{path} has {path.stat().st_size} bytes, its header says {end}: fetch the model again")
    yield from (prod(entry["shape"]) for entry in entries.values())
