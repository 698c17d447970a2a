"""The one list of metric names, `stage/name` or `stage/ROLE/name`, and how they are read off the stages' manifests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mappa_core.store import Manifest
from mappa_core.types import Team

COLLECT = ("tokens", "engine_seconds", "truncated")
ROLE_RATES = (
    "tokens",
    "truncated",
    "turns",
    "tool_use",
    "plan_right",
    "runs",
    "agrees",
    "faithful",
    "boxed",
    "used_tool",
    "ran",
)
UPDATE = (
    "loss",
    "grad_norm",
    "clip_fraction",
    "capped",
    "kl",
    "lr",
    "tokens",
    "kl_reference",
    "reward_mean",
    "seconds",
)
MISMATCH = ("mean_abs", "k3")
COUNTS = ("collected", "trained", "unscored", "masked", "skipped")


def names(team: Team) -> frozenset[str]:
    """Every metric a run of `team` may log."""
    roles = [role.name for role in team.roles]
    out = {f"collect/{n}" for n in COLLECT} | {"collect/success", "score/unscored"}
    out |= {f"evaluate/{n}" for n in ("success", "low", "high")}
    for role in roles:
        out |= {f"{stage}/{role}/{n}" for stage in ("collect", "evaluate") for n in ROLE_RATES}
        out |= {f"update/{role}/{n}" for n in UPDATE} | {f"update/{role}/mismatch_{n}" for n in MISMATCH}
        out |= {f"update/{role}/count_{n}" for n in COUNTS} | {f"score/{role}/value"}
    return frozenset(out)


def of_step(collect: Manifest, score: Manifest, grade: Manifest, update: Manifest) -> dict[str, float]:
    """Metrics of a training step; what did not happen (a skipped update) is absent."""
    out = {f"collect/{n}": float(collect.facts[n]) for n in COLLECT}
    out |= {f"collect/{n}": float(v) for n, v in grade.facts["rates"].items()}
    out["score/unscored"] = float(score.facts["unscored"])
    out |= {f"score/{r}/value": float(v) for r, v in score.facts["by_role"].items() if v is not None}
    for role, facts in update.facts["roles"].items():
        out |= _update(role, facts)
    return out


def of_evaluation(evaluate: Manifest) -> dict[str, float]:
    """Metrics of an evaluation."""
    success = evaluate.facts["success"]
    out = {f"evaluate/{n}": float(v) for n, v in evaluate.facts["rates"].items()}
    return out | {"evaluate/low": float(success["low"]), "evaluate/high": float(success["high"])}


def _update(role: str, facts: Mapping[str, Any]) -> dict[str, float]:
    out = {f"update/{role}/{n}": float(facts[n]) for n in UPDATE if n in facts}
    out |= {f"update/{role}/mismatch_{n}": float(facts["mismatch"][n]) for n in MISMATCH if "mismatch" in facts}
    return out | {f"update/{role}/count_{n}": float(facts["counts"][n]) for n in COUNTS}
