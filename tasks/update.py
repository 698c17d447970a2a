"""Update: each role's samples -> advantages -> optimizer steps -> version k+1 of its policy, published with its digest.

Policies are published only after all of them were updated, and together with the trainer state they can be continued
from. Refuses to train where sampler and trainer disagree.
"""

from __future__ import annotations

from dataclasses import asdict
from statistics import fmean
from typing import Any

from mappa_core.config import digest, seed_from, what
from mappa_core.engine import weights
from mappa_core.engine.calls import EngineError
from mappa_core.learn import advantages
from mappa_core.learn.mismatch import mismatch
from mappa_core.learn.samples import Selection, select
from mappa_core.runs import CREDITS, EPISODES, VERDICTS, Credit
from mappa_core.store import Artifact, Manifest, code_digest
from mappa_core.types import Episode, Policy, Verdict
from tasks.run import Run
from tasks.stage import Made, stage

STATE = "trainer"
CODE = (
    *(f"mappa_core.learn.{m}" for m in ("advantages", "batch", "loss", "mismatch", "plan", "samples", "schedule")),
    *(f"mappa_core.engine.{m}" for m in ("trainer", "zero", "weights")),
    "tasks.update",
)


def _key(run: Run, step: int, policies: tuple[Policy, ...], before: str, episodes: Manifest, verdicts: Manifest) -> str:
    config = run.config
    data = [episodes[EPISODES].digest, verdicts[VERDICTS].digest]
    weights = [[p.role, p.digest] for p in (*run.base, *policies)]
    settings = [config.seed, config.steps, what(config.learn), what(config.engine)]
    return digest(["update", step, before, data, weights, settings, code_digest(*CODE)])


def _compute(
    run: Run, step: int, policies: tuple[Policy, ...], before: str, episodes: Manifest, verdicts: Manifest
) -> Made:
    """`before`: key of the update before this one, "" for the first: the trainer must stand right after it."""
    run.engines.stand_at(run, step, before)
    played = run.store.rows(episodes[EPISODES], Episode)
    scored = run.store.rows(verdicts[VERDICTS], Verdict)
    facts: dict[str, Any] = {}
    credits: list[Credit] = []
    for role in run.team.roles:
        selection = select(role.name, played, scored, run.config.learn.truncated)
        facts[role.name], own = _update(run, step, selection)
        credits.extend(own)
    artifacts = [_publish(run, policy.role, step + 1) for policy in policies]
    state = run.store.scratch("trainer") / STATE
    run.engines.trainer.save(state)
    artifacts += [run.store.adopt(STATE, state), run.store.put_rows(CREDITS, Credit, credits)]
    run.engines.stands_after = _key(run, step, policies, before, episodes, verdicts)
    return Made(artifacts, {"roles": facts, "probes": run.engines.probes()})


def _update(run: Run, step: int, selection: Selection) -> tuple[dict[str, Any], list[Credit]]:
    """Trains one role; its facts, and the credit of each action it was trained on."""
    learn, trainer, role = run.config.learn, run.engines.trainer, selection.role
    facts: dict[str, Any] = {"counts": asdict(selection.counts)}
    if not selection.samples:
        return facts, []
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
    facts |= {"mismatch": gap._asdict(), "kl_reference": batch.kl, "reward_mean": _reward(selection)}
    facts |= {k: v for k, v in asdict(stats).items() if k != "role"}
    credits = [Credit(row.sample.action, row.sample.reward, fmean(row.advantages)) for row in batch.rows]
    return facts, credits


def _reward(selection: Selection) -> float:
    return fmean(sample.reward for sample in selection.samples)


def _publish(run: Run, role: str, version: int) -> Artifact:
    directory = run.store.scratch("policy") / role
    run.engines.trainer.publish(role, version, directory)
    return run.store.adopt(f"policy-{role}", directory)


def published(run: Run, version: int, learned: Manifest) -> tuple[Policy, ...]:
    """The policies that an update published. What the trainer said of the probe is kept for whoever serves them."""
    paths = {role.name: run.store.path(learned[f"policy-{role.name}"]) for role in run.team.roles}
    policies = tuple(Policy(role, version, str(path), weights.digest(path)) for role, path in paths.items())
    for policy in policies:
        run.probes[policy.role, policy.digest] = tuple(learned.facts["probes"][policy.role])
    return policies


update = stage("update", _key, _compute)
