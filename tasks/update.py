"""Update: each role's samples -> advantages -> optimizer steps -> version k+1 of its policy, published with its digest.

Policies are published only after all of them were updated; one manifest names them all, and the trainer state they can
be continued from. Between saved states the trainer gets to any step by doing the updates again on what was played, with
the same bits. Refuses to train where sampler and trainer disagree, or where a number is not finite: the rows are kept.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from mappa_core.config import ConfigError, digest, seed_from, what
from mappa_core.engine import weights
from mappa_core.engine.calls import EngineError
from mappa_core.learn import advantages
from mappa_core.learn.mismatch import mismatch
from mappa_core.learn.samples import Selection, select
from mappa_core.runs import CREDITS, EPISODES, VERDICTS, Credit
from mappa_core.store import Artifact, Manifest, code_digest, json_lines, write_atomic
from mappa_core.types import Episode, Policy, Sample, Verdict
from tasks.run import Run
from tasks.stage import Made, stage

STATE = "trainer"
CODE = (
    *(f"mappa_core.learn.{m}" for m in ("advantages", "batch", "loss", "mismatch", "plan", "samples", "schedule")),
    *(f"mappa_core.engine.{m}" for m in ("trainer", "zero", "weights")),
    "tasks.update",
)
ROOM = 64 * 2**20
"""Bytes that stay free beside a checkpoint."""
UNKNOWN = "unknown"
"""Where a trainer stands in the middle of an update."""


def _before(run: Run, step: int) -> str:
    """Key of the update before training step `step`, "" where there is none."""
    return run.dir.manifest(step - 1, "update").key if step else ""


def _key(run: Run, step: int, policies: tuple[Policy, ...], episodes: Manifest, verdicts: Manifest) -> str:
    config = run.config
    data = [episodes[EPISODES].digest, verdicts[VERDICTS].digest]
    weights = [[p.role, p.digest] for p in (*run.base, *policies)]
    settings = [config.seed, config.steps, what(config.learn), what(config.engine)]
    return digest(["update", step, _before(run, step), data, weights, settings, code_digest(*CODE)])


def _compute(run: Run, step: int, policies: tuple[Policy, ...], episodes: Manifest, verdicts: Manifest) -> Made:
    stand_at(run, step)
    facts, credits = _learn(run, step, episodes, verdicts)
    saving = (step + 1) % run.config.checkpoint.every == 0 or step + 1 == run.config.steps
    wait_for_room(run, step, saving)
    digests, artifacts = _publish(run, step + 1)
    if saving:
        state = run.store.scratch(STATE)
        run.engines.trainer.save(state)
        artifacts.append(run.store.adopt(STATE, state))
    artifacts.append(run.store.put_rows(CREDITS, Credit, credits))
    run.engines.stands_after = _key(run, step, policies, episodes, verdicts)
    return Made(artifacts, {"roles": facts, "policies": digests, "probes": run.engines.probes()})


update = stage("update", _key, _compute)


def published(run: Run, version: int, learned: Manifest) -> tuple[Policy, ...]:
    """The policies that an update published. What the trainer said of the probe is kept for whoever serves them."""
    policies = tuple(
        Policy(role, version, str(run.store.path(learned[f"policy-{role}"])), found)
        for role, found in learned.facts["policies"].items()
    )
    for policy in policies:
        run.probes[policy.role, policy.digest] = tuple(learned.facts["probes"][policy.role])
    return policies


def at_hand(run: Run, policies: tuple[Policy, ...]) -> None:
    """Makes policies again whose weights were pruned; EngineError where they don't come out the same."""
    gone = [policy for policy in policies if not Path(policy.path).is_dir()]
    if not gone:
        return
    version = gone[0].version
    stand_at(run, version)
    digests, _ = _publish(run, version)
    for policy in gone:
        if digests[policy.role] != policy.digest:
            raise EngineError(
                f"{policy.role} version {version} was pruned and came out as {digests[policy.role][:8]}, not "
                f"{policy.digest[:8]}: another machine or number of threads? run with --fresh"
            )


def stand_at(run: Run, step: int) -> None:
    """Puts the trainer right before training step `step`: where it stands, or from the latest state before it."""
    engines = run.engines
    wanted = _before(run, step)
    if engines.stands_after == wanted:
        return
    first = _gone_back(run, step)
    engines.stands_after = UNKNOWN
    for past in range(first, step):
        _learn(run, past, run.dir.manifest(past, "collect"), run.dir.manifest(past, "score"))
    engines.stands_after = wanted


def _gone_back(run: Run, step: int) -> int:
    """Restores the latest state there is of a step before `step`; the training step that comes after it."""
    engines = run.engines
    for past in range(step - 1, -1, -1):
        manifest = run.dir.manifest(past, "update")
        if manifest.key == engines.stands_after:
            return past + 1
        state = next((a for a in manifest.artifacts if a.name == STATE), None)
        if state is not None and run.store.has(state):
            engines.trainer.restore(run.store.path(state))
            return past + 1
    if engines.stands_after:
        raise EngineError(
            f"no trainer state before step {step} is left to go back to: `mappa resume` starts from the base"
        )
    return 0


def _learn(run: Run, step: int, episodes: Manifest, verdicts: Manifest) -> tuple[dict[str, Any], list[Credit]]:
    """Trains all roles on what was played; facts by role, and credits."""
    run.engines.stands_after = UNKNOWN
    played = run.store.rows(episodes[EPISODES], Episode)
    scored = run.store.rows(verdicts[VERDICTS], Verdict)
    facts: dict[str, Any] = {}
    credits: list[Credit] = []
    for role in run.team.roles:
        selection = select(role.name, played, scored, run.config.learn.truncated)
        facts[role.name], own = _train(run, step, selection)
        credits.extend(own)
    return facts, credits


def _train(run: Run, step: int, selection: Selection) -> tuple[dict[str, Any], list[Credit]]:
    """Trains one role; its facts, and the credit of each action it was trained on."""
    learn, trainer, role = run.config.learn, run.engines.trainer, selection.role
    facts: dict[str, Any] = {"counts": asdict(selection.counts)}
    if not selection.samples:
        return facts, []
    try:
        old, reference = trainer.logprobs(role, selection.samples)
        gap = mismatch([s.sampler_logprobs for s in selection.samples], old)
        if not gap.mean_abs <= learn.mismatch_limit:
            raise EngineError(
                f"step {step}: sampler and trainer differ by {gap.mean_abs:.3g} nat a token on {role} "
                f"(learn.mismatch_limit = {learn.mismatch_limit}): do both hold the same weights and dtype?"
            )
        batch = advantages.batch(selection.samples, old, reference, learn.beta)
        shuffle = seed_from("update", run.config.seed, step, role)
        stats = trainer.update(role, batch.rows, first_update=step * learn.updates, seed=shuffle)
    except (EngineError, ValueError) as error:  # the arithmetic refuses numbers that are not finite
        raise EngineError(
            f"{error}; nothing was published, the rows are in {_evidence(run, step, selection)}"
        ) from error
    facts |= {"mismatch": gap._asdict(), "kl_reference": batch.kl, "reward_mean": _reward(selection)}
    facts |= {k: v for k, v in asdict(stats).items() if k != "role"}
    credits = [Credit(row.sample.action, row.sample.reward, fmean(row.advantages)) for row in batch.rows]
    return facts, credits


def _evidence(run: Run, step: int, selection: Selection) -> Path:
    """Keeps what a failed update was given: tokens, sampler logprobs and rewards of each action."""
    path = run.dir.path / "evidence" / f"step-{step}-{selection.role}.jsonl"
    write_atomic(path, json_lines(Sample, selection.samples).decode())
    return path


def _reward(selection: Selection) -> float:
    return fmean(sample.reward for sample in selection.samples)


def _publish(run: Run, version: int) -> tuple[dict[str, str], list[Artifact]]:
    """Publishes what the trainer holds as `version` of all policies: digests by role, and the payloads."""
    digests: dict[str, str] = {}
    artifacts: list[Artifact] = []
    for role in run.team.roles:
        directory = run.store.scratch("policy")
        digests[role.name] = run.engines.trainer.publish(role.name, version, directory).digest
        artifacts.append(run.store.adopt(f"policy-{role.name}", directory))
    return digests, artifacts


def checkpoint_bytes(run: Run, saving: bool) -> int:
    """Bytes of all policies in float32, and with `saving` of the trainer's state: masters and two moments."""
    numel = sum(sum(weights.sizes(Path(policy.path))) for policy in run.base)
    return numel * (4 + (12 if saving else 0))


def wait_for_room(run: Run, step: int, saving: bool) -> None:
    """Returns when a checkpoint fits on the disk; ConfigError where that takes longer than the config allows."""
    need = checkpoint_bytes(run, saving) + ROOM
    deadline = time.monotonic() + run.config.checkpoint.wait_for_disk_s
    while (free := shutil.disk_usage(run.store.root).free) < need:
        told = f"{run.store.root} has {free >> 20} MiB free, a checkpoint of step {step} needs {need >> 20}: make room"
        if time.monotonic() > deadline:
            raise ConfigError(f"{told}, then `mappa resume {run.dir.path}`")
        run.listener("update", step, {"paused": f"{told}, it then goes on by itself"})
        time.sleep(1.0)
