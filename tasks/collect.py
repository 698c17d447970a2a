"""Collect: the team plays the step's problems; each finished episode streams to the coach while others are played."""

from __future__ import annotations

from collections.abc import Callable

from mappa_core.config import digest, what
from mappa_core.problems import sets
from mappa_core.runs import EPISODES
from mappa_core.types import Action, Episode, Policy
from tasks import play
from tasks.run import Run
from tasks.score import Scoring
from tasks.stage import Made, stage


def _key(run: Run, step: int, policies: tuple[Policy, ...], scoring: Scoring) -> str:
    config = run.config
    return digest(["collect", config.seed, step, run.train.digest, what(config.collect), play.key(run, policies)])


def _compute(run: Run, step: int, policies: tuple[Policy, ...], scoring: Scoring) -> Made:
    config = run.config
    problems = sets.draw(run.train.problems, step, config.collect.problems, config.seed)
    before = run.engines.sampler.usage
    episodes = play.play(
        run,
        policies,
        problems,
        samples=config.collect.samples,
        temperature=config.collect.temperature,
        seed=config.seed,
        step=step,
        on_episode=scoring.put,
    )
    spent = run.engines.sampler.usage
    tokens = spent.output_tokens - before.output_tokens
    facts = {
        "episodes": len(episodes),
        "actions": sum(len(e.actions) for e in episodes),
        "tokens": tokens,
        "engine_seconds": spent.busy_seconds - before.busy_seconds,
        "truncated": _share(episodes, lambda a: a.finish_reason == "length"),
    }
    return Made([run.store.put_rows(EPISODES, Episode, episodes)], facts)


def _share(episodes: list[Episode], fact: Callable[[Action], bool]) -> float:
    facts = [fact(action) for episode in episodes for action in episode.actions]
    return sum(facts) / len(facts)


collect = stage("collect", _key, _compute)
