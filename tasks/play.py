"""The team plays on the engines: rollout, chat, sampler and sandbox joined. What `collect` and `evaluate` share."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from mappa_core import rollout
from mappa_core.config import digest, what
from mappa_core.sandbox import Limits, run_code
from mappa_core.store import code_digest
from mappa_core.types import Episode, Execution, Generation, Policy, Problem, Request
from tasks.run import Run
from tasks.update import at_hand

CODE = (
    "mappa_core.types",
    "mappa_core.rollout",
    "mappa_core.chat",
    "mappa_core.engine.sampler",
    "mappa_core.teams.language",
    *(f"mappa_core.sandbox.{m}" for m in ("excerpt", "inside", "launch", "local", "member", "seccomp", "workspace")),
    "tasks.play",
)


def key(run: Run, policies: Sequence[Policy]) -> str:
    """Digest of all that an episode depends on, but problems, sampling and seed."""
    config = run.config
    parts = [what(config.engine), what(config.sandbox), [[p.role, p.digest] for p in policies]]
    return digest([parts, digest(asdict(run.team)), code_digest(*CODE)])


def play(
    run: Run,
    policies: tuple[Policy, ...],
    problems: Sequence[Problem],
    *,
    samples: int,
    temperature: float,
    seed: int,
    step: int,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Episodes of `policies` on `problems`, in the order (problem, sample)."""
    sampler, config = run.engines.sampler, run.config
    at_hand(run, policies)
    run.engines.serve(policies)
    workspaces = run.store.scratch("workspaces")
    limits = Limits(**config.sandbox.model_dump(exclude={"workers", "preload"}))

    async def generate(role: str, requests: list[Request]) -> list[Generation]:
        eos = run.speakers[role].eos_ids
        return await sampler.generate(role, requests, config.collect.max_new_tokens, temperature, eos)

    async def execute(episode: str, code: str) -> Execution:
        return await asyncio.to_thread(run_code, code, _workspace(workspaces, episode), limits, config.sandbox.preload)

    try:
        return asyncio.run(
            rollout.play_all(
                problems,
                samples,
                run.team,
                run.speakers,
                generate,
                execute,
                max_len=config.engine.max_len,
                seed=seed,
                step=step,
                sandboxes=config.sandbox.workers,
                on_episode=on_episode,
            )
        )
    finally:
        shutil.rmtree(workspaces)


def _workspace(root: Path, episode: str) -> Path:
    """The episode's folder, made at its first program; its name is a digest: an id may hold any character."""
    path = root / hashlib.blake2b(episode.encode(), digest_size=8).hexdigest()
    path.mkdir(exist_ok=True)
    return path
