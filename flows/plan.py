"""`mappa run --dry-run`: the resolved config, and what the run will need, before anything is allocated."""

from __future__ import annotations

from pathlib import Path

from mappa_core.config import ExperimentConfig, LocalModel
from mappa_core.engine.preflight import preflight
from mappa_core.problems import sets
from mappa_core.teams import team

GIB = 2**30


def plan(config: ExperimentConfig, root: Path) -> str:
    """The plan as text; ConfigError where it can't be carried out here."""
    roles = team(config.team).roles
    train = sets.load(root, config.data.train)
    heldout = sets.load(root, config.data.evaluate)
    sets.check_disjoint(train, heldout)
    model = Path(config.model.path) if isinstance(config.model, LocalModel) else None
    need = preflight(config, model, root / "runs", policies=len(roles))
    episodes = config.collect.problems * config.collect.samples
    turns = sum(role.max_turns for role in roles)
    evaluations = 1 + config.steps // config.evaluate.every + bool(config.steps % config.evaluate.every)
    return "\n".join(
        [
            config.model_dump_json(indent=1),
            f"team        {config.team}: {', '.join(role.name for role in roles)}, separate weights",
            f"data        {train.name} ({len(train.problems)} problems)",
            f"held out    {heldout.name} ({len(heldout.problems)} problems)",
            f"coach       {config.coach.type}, {'label-free' if config.label_free else 'sees answers'}; no calls",
            f"steps       {config.steps} of {episodes} episodes, at most {episodes * turns} actions each",
            f"updates     {config.steps * config.learn.updates} optimizer steps a role",
            f"evaluation  {evaluations} times {config.evaluate.problems * config.evaluate.samples} episodes",
            f"memory      {need.memory / GIB:.1f} GiB at the peak, {need.sampler / GIB:.1f} of it the sampler's",
            f"disk        {need.disk / GIB:.2f} GiB",
        ]
    )
