"""Which checkpoints stay: by hand-made updates and evaluations in a real store and run directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from mappa_core.config import ExperimentConfig, parse
from mappa_core.store import Manifest, RunDir, Store
from tasks.retain import best, retain
from tasks.run import Run
from tasks.update import STATE

EVERY, KEEP = 2, 2
CONFIG = {
    "name": "lab",
    "steps": 9,
    "team": "lab",
    "model": {"type": "lab"},
    "checkpoint": {"every": EVERY, "keep": KEEP},
}


@dataclass
class FakeRun:
    store: Store
    dir: RunDir
    config: ExperimentConfig
    unpruned: dict[int, Manifest] = field(default_factory=dict)


def opened(tmp_path: Path) -> Run:
    config = parse(CONFIG, "test")
    return cast("Run", FakeRun(Store(tmp_path / "store"), RunDir.create(tmp_path / "run", config), config))


def put(run: Run, name: str, text: str) -> Any:
    folder = run.store.scratch("x") / name
    folder.mkdir()
    (folder / "file").write_text(text)
    return run.store.adopt(name, folder)


def updated(run: Run, step: int, weights: str) -> Manifest:
    artifacts = [put(run, "policy-solver", weights)]
    if (step + 1) % EVERY == 0:
        artifacts.append(put(run, STATE, f"state {step}"))
    manifest = run.store.stage("update", f"u{step}", lambda: (artifacts, {}))
    run.dir.record(step, manifest, run.store)
    return manifest


def evaluated(run: Run, steps: int, success: float) -> None:
    made = run.store.stage("evaluate", f"e{steps}", lambda: ([], {"success": {"value": success}}))
    run.dir.record(steps, made, run.store)


def test_the_latest_states_and_the_best_policies_stay(tmp_path: Path) -> None:
    run = opened(tmp_path)
    evaluated(run, 0, 0.1)
    made = []
    for step in range(9):
        made.append(updated(run, step, f"weights {step}"))
        if step == 2:
            evaluated(run, 3, 0.9)
        retain(run, step + 1)
    assert best(run, 9) == 3
    has = [sorted(a.name for a in m.artifacts if run.store.has(a)) for m in made]
    both = ["policy-solver", STATE]
    assert has == [[], [], ["policy-solver"], [], [], both, [], both, ["policy-solver"]]
    assert all(run.store.whole(m) for m in made), "what was pruned is still believed"
    assert sorted(run.unpruned) == [2, 5, 7, 8]


def test_weights_that_a_kept_step_shares_are_not_removed(tmp_path: Path) -> None:
    run = opened(tmp_path)
    made = [updated(run, step, "the same, as every update was skipped") for step in range(4)]
    retain(run, 4)
    assert all(run.store.has(m["policy-solver"]) for m in made)


def test_a_resumed_run_prunes_the_same(tmp_path: Path) -> None:
    run = opened(tmp_path)
    made = [updated(run, step, f"weights {step}") for step in range(6)]
    retain(run, 6)
    assert [run.store.has(m["policy-solver"]) for m in made] == [False, False, False, True, False, True]
