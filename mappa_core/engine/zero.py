"""One ZeRO-3 rank: a DeepSpeed engine per policy and a frozen model per distinct base, in one process.

Imported inside the rank's process only, after its environment is set: it imports torch and DeepSpeed. Refuses to step
on a loss or gradient that is not finite, and to restore a state that another number of ranks saved.
"""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import deepspeed
import torch
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from mappa_core import config
from mappa_core.engine import weights
from mappa_core.learn.batch import attention, pack, targets, unpack
from mappa_core.learn.loss import clipped_loss, token_logprobs
from mappa_core.learn.plan import Step, Sums
from mappa_core.types import Policy, Sample

Logprobs = tuple[float, ...]

_ATTENTION = "packed_rows"
AttentionInterface.register(_ATTENTION, attention)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_WHOLE = 4096
"""Parameters of at most this many elements (norms, biases) are kept whole on every rank: gathering them costs a message
and saves nothing. Matrices are sharded, the tiny lab model's too, so that the laptop runs what the cluster runs."""
_BUCKET = 50_000_000
"""Elements of one reduction or gathering at most. DeepSpeed allocates the reduction bucket up front, for every engine:
a model smaller than this gets a bucket of its own size."""
_GATHER = 200_000_000
"""Elements gathered at once when weights are published."""


class Host:
    """The engines of one rank. All calls are collective: every rank makes the same calls in the same order."""

    def __init__(
        self,
        rank: int,
        policies: tuple[Policy, ...],
        bases: tuple[Policy, ...],
        learn: config.Learn,
        engine: config.Engine,
    ) -> None:
        # DeepSpeed calls torch's collectives by their old names, thousands of times a step.
        warnings.filterwarnings("ignore", message=r".*torch\.distributed\..* is deprecated", category=FutureWarning)
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        # Without this DeepSpeed compiles a C++ extension at its first start, for a reduction that training never uses.
        deepspeed.ops.__compatible_ops__ = {}  # pyright: ignore[reportAttributeAccessIssue]
        deepspeed.init_distributed("gloo" if engine.device == "cpu" else "nccl", verbose=False)
        # DeepSpeed collects garbage for each engine, which takes a second while it walks through all imported modules.
        gc.freeze()
        self._rank = rank
        self._learn = learn
        self._config = engine
        self._device = "cpu" if engine.device == "cpu" else f"cuda:{torch.cuda.current_device()}"
        self._bases = {base.role: base for base in bases}
        distinct = {base.digest: base for base in bases}
        self._references = {digest: self._frozen(base) for digest, base in distinct.items()}
        self._engines = {policy.role: self._trained(policy) for policy in policies}

    def logprobs(self, role: str, micros: Sequence[tuple[Sample, ...]]) -> list[list[Logprobs]]:
        """By the policy of `role`: per micro-batch, per sample, (T,)."""
        engine = self._engines[role]
        engine.eval()
        with torch.inference_mode(False), torch.no_grad():
            return [self._score(engine, samples) for samples in micros]

    def reference(self, role: str, micros: Sequence[tuple[Sample, ...]]) -> list[list[Logprobs]]:
        """The same by the frozen base of `role`. The one call that is not collective."""
        model = self._references[self._bases[role].digest]
        with torch.no_grad():
            return [self._score(model, samples) for samples in micros]

    def update(self, role: str, steps: Sequence[Step], rates: Sequence[float]) -> list[Sums]:
        """Optimizer steps, one after another; ArithmeticError, on all ranks alike, where one is not finite."""
        engine = self._engines[role]
        engine.train()
        return [self._step(engine, role, step, lr) for step, lr in zip(steps, rates, strict=True)]

    def publish(self, role: str, version: int, directory: str) -> Policy | None:
        """Gathers the weights; rank 0 publishes them and returns the policy, the others return None."""
        tensors = dict(self._gathered(self._engines[role].module))
        if self._rank != 0:
            return None
        return weights.publish(role, version, tensors, Path(self._bases[role].path), Path(directory))

    def save(self, directory: str) -> None:
        """Writes this rank's float32 master weights, Adam moments and step counts of all policies."""
        state = {role: _rank_state(engine) for role, engine in self._engines.items()}
        torch.save(state, Path(directory) / f"rank{self._rank}.pt")

    def restore(self, directory: str) -> None:
        """Takes back what `save` wrote."""
        state = torch.load(Path(directory) / f"rank{self._rank}.pt", map_location="cpu", weights_only=True)
        for role, engine in self._engines.items():
            _restore_rank_state(engine, self._rank, state[role])

    def _score(self, model: Any, samples: tuple[Sample, ...]) -> list[Logprobs]:
        return unpack(token_logprobs(model, pack(samples, self._device)), samples)

    def _step(self, engine: Any, role: str, step: Step, lr: float) -> Sums:
        for group in engine.optimizer.param_groups:
            group["lr"] = lr
        totals = torch.zeros(4, dtype=torch.float64)
        # ZeRO averages the ranks' gradients, and averages nothing else: each rank gives its sum over the kept tokens of
        # all ranks, times the number of ranks.
        scale = self._config.ranks / step.kept_tokens
        for i, micro in enumerate(step.micros):
            engine.set_gradient_accumulation_boundary(i == len(step.micros) - 1)
            packed = pack([row.sample for row in micro.rows], self._device)
            parts = clipped_loss(
                token_logprobs(engine, packed), targets(micro.rows, self._device), self._learn.clip, self._learn.tis_cap
            )
            engine.backward(parts.loss * (micro.weight * scale))
            totals += torch.stack([p.detach().double().cpu() for p in parts]) * micro.weight
        engine.step()
        norm = engine.get_global_grad_norm()
        # The norm is global, so all ranks raise together; DeepSpeed has then left the weights alone.
        if norm is None or not math.isfinite(norm) or float(norm) < 0 or not totals.isfinite().all():
            raise ArithmeticError(f"{role}: loss or gradient is not finite (norm {norm}): lower learn.lr and resume")
        return Sums(*totals.tolist(), grad_norm=float(norm))

    def _frozen(self, base: Policy) -> torch.nn.Module:
        """A whole copy per rank: it needs no messages, and bases are shared by roles."""
        model = self._load(base.path)
        return model.to(self._device).eval().requires_grad_(False)

    def _trained(self, policy: Policy) -> Any:
        # The whole model is on this rank while it loads, one policy at a time; `initialize` then keeps its own part.
        # (Sharding while loading needs the package accelerate, and reads every file on every rank all the same.)
        settings = self._settings(Path(policy.path))
        model = self._load(policy.path)
        if self._config.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        # A decoder layer is gathered in one go: hooks and messages for each of its matrices cost twice the computation.
        deepspeed.utils.set_z3_leaf_modules(model, list(model._no_split_modules))  # noqa: SLF001  # no public name
        parameters: Any = list(model.parameters())
        engine, *_ = deepspeed.initialize(model=model, config=settings, model_parameters=parameters)
        return engine

    def _load(self, path: str) -> Any:
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=_DTYPES[self._config.dtype], attn_implementation=_ATTENTION, local_files_only=True
        )
        if any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in model.modules()) or getattr(
            model.config, "attention_dropout", 0.0
        ):
            raise config.ConfigError(f"{path} has dropout, which makes the ratio noise: set it to 0 in its config.json")
        return model

    def _settings(self, path: Path) -> dict[str, Any]:
        """DeepSpeed's own configuration."""
        numel = sum(weights.sizes(path))
        learn = self._learn
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,  # the boundary is set by hand, see _step
            "gradient_clipping": learn.max_grad_norm,
            "bf16": {"enabled": self._config.dtype == "bfloat16"},
            "data_types": {"grad_accum_dtype": "fp32"},
            "communication_data_type": "fp32",
            "optimizer": {
                "type": "AdamW",
                "params": {
                    "lr": learn.lr,
                    "betas": learn.betas,
                    "eps": 1e-8,
                    "weight_decay": learn.weight_decay,
                    "torch_adam": True,  # DeepSpeed's own Adam needs a compiler
                },
            },
            "zero_optimization": {
                "stage": 3,
                "overlap_comm": self._config.device == "cuda",
                "reduce_bucket_size": min(numel, _BUCKET),
                "stage3_prefetch_bucket_size": min(numel, _BUCKET),
                "stage3_param_persistence_threshold": _WHOLE,
            },
            "steps_per_print": 1 << 60,
            "zero_allow_untested_optimizer": True,
        }

    def _gathered(self, module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and whole tensors on rank 0, a bounded number of elements at a time; nothing on the others."""
        for named in _chunks(list(module.named_parameters())):
            parameters = [p for _, p in named]
            for parameter in parameters:
                parameter.ds_active_sub_modules.clear()  # a stale entry makes the gathering assert, after hours
            with deepspeed.zero.GatheredParameters(parameters):
                if self._rank == 0:
                    yield from [(name, p.detach().cpu().clone()) for name, p in named]


def _chunks(named: list[tuple[str, Any]]) -> Iterator[list[tuple[str, Any]]]:
    chunk: list[tuple[str, Any]] = []
    total = 0
    for name, parameter in named:
        if chunk and total + parameter.ds_numel > _GATHER:
            yield chunk
            chunk, total = [], 0
        chunk.append((name, parameter))
        total += parameter.ds_numel
    yield chunk


def _rank_state(engine: Any) -> dict[str, Any]:
    """Plain tensors and numbers only, so that it can be read without running pickled code."""
    whole = engine.optimizer.state_dict()
    return {
        "optimizer": whole["optimizer_state_dict"],
        "masters": [t.detach().clone() for t in whole["fp32_flat_groups"]],
    }


def _restore_rank_state(engine: Any, rank: int, state: dict[str, Any]) -> None:
    optimizer = engine.optimizer
    optimizer.checkpoint_event_prologue()
    whole = optimizer.state_dict()
    whole["optimizer_state_dict"] = state["optimizer"]
    whole["fp32_flat_groups"] = state["masters"]
    optimizer.load_state_dict({rank: whole})
    optimizer.checkpoint_event_epilogue()
