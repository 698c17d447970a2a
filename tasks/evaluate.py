"""Evaluate: the team plays held-out problems, several samples each; success with an interval, and each role's part."""

from __future__ import annotations

from dataclasses import asdict

from mappa_core.config import digest, seed_from, what
from mappa_core.graders.statistics import clustered
from mappa_core.runs import HELDOUT_EPISODES, HELDOUT_OUTCOMES
from mappa_core.store import code_digest
from mappa_core.types import Episode, Outcome, Policy
from tasks import play
from tasks.grade import CODE, graded, rates
from tasks.run import Run
from tasks.stage import Made, stage


def _key(run: Run, step: int, policies: tuple[Policy, ...]) -> str:
    config = run.config
    sampling = [config.seed, run.heldout.digest, what(config.evaluate), config.collect.max_new_tokens]
    return digest(["evaluate", sampling, play.key(run, policies), code_digest(*CODE, "tasks.evaluate")])


def _compute(run: Run, step: int, policies: tuple[Policy, ...]) -> Made:
    """The same problems and seeds at every step, so that two evaluations are paired."""
    config = run.config.evaluate
    problems = run.heldout.problems[: config.problems]
    episodes = play.play(
        run,
        policies,
        problems,
        samples=config.samples,
        temperature=config.temperature,
        seed=seed_from("evaluate", run.config.seed),
        step=0,
    )
    outcomes = graded(episodes, run.heldout.keys)
    success = [float(outcome.success) for outcome in outcomes]  # episodes are in the order (problem, sample)
    by_problem = [success[i : i + config.samples] for i in range(0, len(success), config.samples)]
    interval = clustered(by_problem, seed=run.config.seed)
    facts = {"success": asdict(interval), "rates": rates(episodes, outcomes)}
    artifacts = [
        run.store.put_rows(HELDOUT_EPISODES, Episode, episodes),
        run.store.put_rows(HELDOUT_OUTCOMES, Outcome, outcomes),
    ]
    return Made(artifacts, facts)


evaluate = stage("evaluate", _key, _compute)
