"""The trainer: a group of ZeRO-3 ranks as Ray actors, which hosts all policies of a team and trains one after another.

The driver's half: it decides who computes what and adds up what comes back; `zero` is the ranks' half. Refuses to go
on after a rank failed (the others then wait in a collective): the group is stopped, a new one restores the saved state.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import sys
import tempfile
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ray

from mappa_core import config
from mappa_core.engine import weights
from mappa_core.engine.calls import EngineError, actor_env, wait
from mappa_core.learn.plan import Step, Sums, length, shares, steps
from mappa_core.learn.schedule import learning_rate
from mappa_core.types import Policy, Row, Sample

if TYPE_CHECKING:
    from mappa_core.engine.zero import Host

Logprobs = tuple[float, ...]

# DeepSpeed decorates an optimizer that is not used here with torch.compile, which imports the compiler: 6 s of CPU.
_QUICK = {"TORCHDYNAMO_DISABLE": "1"}

_CACHED = 4096
"""Samples whose reference logprobs are kept, the latest ones."""


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """One update of one policy: means over its kept tokens, unless said otherwise."""

    role: str
    updates: int
    """Optimizer steps made."""
    loss: float
    grad_norm: float
    """Mean over the optimizer steps, before clipping."""
    clip_fraction: float
    """Share of tokens whose ratio left [1 - clip, 1 + clip]."""
    capped: float
    """Share of tokens whose importance weight reached learn.tis_cap."""
    kl: float
    """k3 estimate of KL(old || new), in nats."""
    lr: float
    """Of the last optimizer step."""
    tokens: int
    """Output tokens trained on."""
    rows: int
    fillers: int
    """Zero-weight micro-batches that kept the ranks in step."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Saved:
    """What a saved trainer state is of: it can be restored by an equal group only."""

    roles: tuple[str, ...]
    ranks: int
    dtype: str


class _Place(NamedTuple):
    node: str
    host: str
    port: int


class _Rank:
    """The actor: it sets the environment of its process, then imports and hosts the engines."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._host: Host | None = None

    def place(self) -> _Place:
        """Where this rank is, and a port that is free there."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return _Place(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), port)

    def load(
        self,
        policies: tuple[Policy, ...],
        bases: tuple[Policy, ...],
        learn: config.Learn,
        engine: config.Engine,
        *places: _Place,
    ) -> None:
        """Joins the other ranks and loads all engines."""
        one_node = len({p.node for p in places}) == 1
        nth = [p.node for p in places[: self._rank]].count(places[self._rank].node)
        os.environ.update(
            RANK=str(self._rank),
            WORLD_SIZE=str(len(places)),
            LOCAL_RANK="0" if engine.device == "cuda" else str(nth),  # Ray shows a rank its own GPU only
            MASTER_ADDR="127.0.0.1" if one_node else places[0].host,
            MASTER_PORT=str(places[0].port),
        )
        if one_node:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # else the machine's name must resolve
        # DeepSpeed's autotuner, not used here, imports mlflow where it finds it: 4 s of CPU. None: not found.
        sys.modules["mlflow"] = None  # pyright: ignore[reportArgumentType]
        from mappa_core.engine.zero import Host  # after the environment is set: it imports torch and DeepSpeed

        self._host = Host(self._rank, policies, bases, learn, engine)

    def call(self, method: str, *args: Any) -> Any:
        """A method of `zero.Host`."""
        return getattr(self._host, method)(*args)


class Trainer:
    """The group of ranks, as the driver sees it. Methods block, each within engine.call_timeout_s."""

    @classmethod
    def start(
        cls,
        policies: tuple[Policy, ...],
        bases: tuple[Policy, ...],
        learn: config.Learn,
        engine: config.Engine,
        total_updates: int,
        cpus: float = 0.25,
        threads: int = 1,
    ) -> Trainer:
        """Starts the actors and returns at once: `ready` waits for them. Needs a running Ray.

        `policies`: what to train, one per role; `bases`: the frozen reference of each of these roles; `total_updates`:
        optimizer steps of the whole run, which the learning rate's schedule covers; `cpus`: of Ray's, for each rank, a
        fraction so that ranks, a sampler and sandboxes share two cores; `threads`: OpenMP threads of each rank.
        """
        if [p.role for p in policies] != [b.role for b in bases]:
            raise ValueError("give a base for each policy, in the same order")
        return cls(policies, bases, learn, engine, total_updates, cpus, threads)

    def __init__(
        self,
        policies: tuple[Policy, ...],
        bases: tuple[Policy, ...],
        learn: config.Learn,
        engine: config.Engine,
        total_updates: int,
        cpus: float,
        threads: int,
    ) -> None:
        self._bases = {b.role: b for b in bases}
        self._learn, self._config, self._total = learn, engine, total_updates
        self._saved = Saved(tuple(p.role for p in policies), engine.ranks, engine.dtype)
        self._references: OrderedDict[str, array[float]] = OrderedDict()
        gpu = engine.device == "cuda"
        options = {
            "num_cpus": cpus,
            "num_gpus": 1 if gpu else 0,
            "runtime_env": {"env_vars": actor_env(threads, {"DS_ACCELERATOR": engine.device, **_QUICK})},
        }
        actor = ray.remote(_Rank).options(**options)  # pyright: ignore[reportAttributeAccessIssue]
        self._ranks: list[Any] = [actor.remote(rank) for rank in range(engine.ranks)]
        places = [rank.place.remote() for rank in self._ranks]
        self._loading = [rank.load.remote(policies, bases, learn, engine, *places) for rank in self._ranks]

    def ready(self, timeout_s: float) -> None:
        """Waits until all ranks have loaded all policies; EngineError says what was waited for."""
        roles = ", ".join(self._saved.roles)
        self._wait(self._loading, timeout_s, f"{len(self._ranks)} ZeRO-3 ranks load {roles} (engine.ranks)")

    def logprobs(self, role: str, samples: Sequence[Sample]) -> tuple[list[Logprobs], list[Logprobs]]:
        """(T,) logprobs of each sample's output by the policy of `role` as it is, and by its frozen base.

        Both come from the same packed path; the base's are cached by tokens and base. EngineError where one is not
        finite.
        """
        old = self._scores("logprobs", role, samples)
        keys = [_tokens_key(s, self._bases[role].digest) for s in samples]
        missing = [i for i, key in enumerate(keys) if key not in self._references]
        found = self._scores("reference", role, [samples[i] for i in missing])
        fresh = dict(zip([keys[i] for i in missing], [array("f", x) for x in found], strict=True))
        known = {**{k: self._references[k] for k in keys if k in self._references}, **fresh}
        self._references.update(fresh)
        while len(self._references) > _CACHED:
            self._references.popitem(last=False)
        return old, [tuple(known[key]) for key in keys]

    def update(self, role: str, rows: Sequence[Row], first_update: int, seed: int) -> UpdateStats:
        """Makes learn.updates optimizer steps on `rows`; the first is number `first_update` of the run, from 0.

        `seed` decides which rows go together. Fewer rows than steps make fewer steps. EngineError where a loss or
        gradient is not finite: the group is then stopped, nothing of it may be published.
        """
        if not rows:
            raise ValueError(f"{role}: no rows; skip the update and count it")
        started = time.monotonic()
        planned = steps(rows, self._learn.updates, len(self._ranks), self._config.pack_tokens, seed)
        rates = [learning_rate(self._learn, first_update + i, self._total) for i in range(len(planned))]
        parts = zip(*planned, strict=True)
        sums: list[list[Sums]] = self._call("update", [(role, part, rates) for part in parts], f"{role}: update")
        return _stats(role, rows, planned, sums, rates[-1], time.monotonic() - started)

    def publish(self, role: str, version: int, directory: Path) -> Policy:
        """Publishes the weights of `role` as `directory`, whole or not at all: see `weights.publish`."""
        made = self._call("publish", [(role, version, str(directory))] * len(self._ranks), f"{role}: publish")
        return next(policy for policy in made if policy is not None)

    def save(self, directory: Path) -> None:
        """Saves the state of all policies (master weights, Adam moments, step counts), whole or not at all.

        `directory` must be on a file system that all ranks share; one that is there is replaced.
        """
        directory.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}."))
        try:
            self._call("save", [(str(staging),)] * len(self._ranks), "save the trainer state")
            (staging / "state.json").write_text(json.dumps(asdict(self._saved)))
            weights.swap(staging, directory)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def restore(self, directory: Path) -> None:
        """Takes back what `save` wrote: the next update gives the bits it would have given without interruption.

        ConfigError where it was saved by a group of other roles, ranks or dtype.
        """
        path = directory / "state.json"
        if not path.is_file():
            raise config.ConfigError(f"{directory} holds no trainer state: resume from another step")
        found = json.loads(path.read_text())
        saved = Saved(tuple(found["roles"]), found["ranks"], found["dtype"])
        if saved != self._saved:
            raise config.ConfigError(f"{directory} was saved by {saved}, this is {self._saved}: use the same config")
        self._call("restore", [(str(directory),)] * len(self._ranks), "restore the trainer state")

    def stop(self) -> None:
        """Ends the ranks."""
        for rank in self._ranks:
            ray.kill(rank)

    def _scores(self, method: str, role: str, samples: Sequence[Sample]) -> list[Logprobs]:
        if not samples:
            return []
        lengths = [length(s) for s in samples]
        planned = shares(lengths, range(len(samples)), len(self._ranks), self._config.pack_tokens)
        args = [(role, [tuple(samples[i] for i in micro.rows) for micro in micros]) for micros in planned]
        answers = self._call(method, args, f"{role}: {method}")
        found: dict[int, Logprobs] = {}
        for micros, answer in zip(planned, answers, strict=True):
            for micro, scored in zip(micros, answer, strict=True):
                if micro.weight:
                    found.update(zip(micro.rows, scored, strict=True))
        for i, sample in enumerate(samples):
            if not all(map(math.isfinite, found[i])):
                raise EngineError(f"{sample.action}: a logprob of {role} is not finite ({method}): lower learn.lr")
        return [found[i] for i in range(len(samples))]

    def _call(self, method: str, args: Sequence[tuple[Any, ...]], what: str) -> list[Any]:
        refs = [rank.call.remote(method, *own) for rank, own in zip(self._ranks, args, strict=True)]
        return self._wait(refs, self._config.call_timeout_s, what)

    def _wait(self, refs: list[Any], timeout_s: float, what: str) -> list[Any]:
        try:
            return wait(refs, timeout_s, what)
        except EngineError:
            self.stop()
            raise


def _tokens_key(sample: Sample, base: str) -> str:
    """Two samples with equal tokens have equal reference logprobs, wherever they come from."""
    tokens = array("q", [len(sample.prompt_tokens), *sample.prompt_tokens, *sample.output_tokens])
    return blake2b(tokens.tobytes() + base.encode(), digest_size=16).hexdigest()


def _stats(
    role: str,
    rows: Sequence[Row],
    planned: Sequence[Sequence[Step]],
    sums: Sequence[Sequence[Sums]],
    lr: float,
    seconds: float,
) -> UpdateStats:
    flat = [s for rank in sums for s in rank]
    tokens = sum(len(row.advantages) for row in rows)
    return UpdateStats(
        role=role,
        updates=len(planned),
        loss=sum(s.loss for s in flat) / tokens,
        grad_norm=sum(s.grad_norm for s in sums[0]) / len(planned),
        clip_fraction=sum(s.clipped for s in flat) / tokens,
        capped=sum(s.capped for s in flat) / tokens,
        kl=sum(s.kl for s in flat) / tokens,
        lr=lr,
        tokens=tokens,
        rows=len(rows),
        fillers=sum(m.weight == 0 for step in planned for part in step for m in part.micros),
        seconds=seconds,
    )
