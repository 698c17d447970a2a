"""Where the trainer is put before a step, what is kept of a failed one, and how a full disk is waited for."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mappa_core.config import ConfigError, parse
from mappa_core.engine.calls import EngineError
from mappa_core.learn.samples import Counts, Selection
from mappa_core.store import RunDir, Store
from mappa_core.types import Policy, Sample
from tasks.run import Run
from tasks.update import STATE, stand_at, wait_for_room
from tasks.update import _train as train_role

CONFIG = {
    "name": "lab",
    "steps": 9,
    "team": "lab",
    "model": {"type": "lab"},
    "checkpoint": {"wait_for_disk_s": 0.0},
}


@dataclass
class FakeTrainer:
    restored: list[str] = field(default_factory=list)
    error: str = ""
    old: float = -1.0

    def restore(self, path: Path) -> None:
        self.restored.append((path / "file").read_text())

    def logprobs(self, role: str, samples: list[Sample]) -> Any:
        if self.error:
            raise EngineError(self.error)
        return [(self.old,) * len(s.output_tokens) for s in samples], [(self.old,) for _ in samples]


@dataclass
class FakeRun:
    root: Path
    trainer: FakeTrainer = field(default_factory=FakeTrainer)
    told: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = parse(CONFIG, "test")
        self.store, self.dir = Store(self.root / "store"), RunDir.create(self.root / "run", self.config)
        self.engines = SimpleNamespace(trainer=self.trainer, stands_after="")
        self.team = SimpleNamespace(roles=())
        self.base: tuple[Policy, ...] = ()

    def listener(self, stage: str, step: int, facts: Mapping[str, Any]) -> None:
        self.told.append(facts)

    def updated(self, step: int, state: bool) -> None:
        artifacts = []
        if state:
            folder = self.store.scratch("x") / STATE
            folder.mkdir()
            (folder / "file").write_text(f"after {step}")
            artifacts.append(self.store.adopt(STATE, folder))
        for stage in ("collect", "score"):
            rows = [self.store.put_rows(name, dict, []) for name in ("episodes.jsonl", "verdicts.jsonl")]
            made = self.store.stage(stage, f"{stage}{step}", lambda rows=rows: (rows, {}))
            self.dir.record(step, made, self.store)
        self.dir.record(step, self.store.stage("update", f"u{step}", lambda: (artifacts, {})), self.store)


def test_the_latest_state_is_restored_and_the_updates_after_it_done_again(tmp_path: Path) -> None:
    fake = FakeRun(tmp_path)
    for step in range(5):
        fake.updated(step, state=step in (0, 2))
    stand_at(cast("Run", fake), 5)
    assert fake.trainer.restored == ["after 2"]
    assert fake.engines.stands_after == "u4"
    stand_at(cast("Run", fake), 5)
    assert fake.trainer.restored == ["after 2"], "it stands there already"
    fake.store.prune(fake.dir.manifest(2, "update")[STATE])
    stand_at(cast("Run", fake), 3)
    assert fake.trainer.restored == ["after 2", "after 0"], "a pruned state is not looked for"


def test_a_damaged_state_is_passed_over(tmp_path: Path) -> None:
    fake = FakeRun(tmp_path)
    for step in range(3):
        fake.updated(step, state=True)
    (fake.store.path(fake.dir.manifest(2, "update")[STATE]) / "file").write_text("flipped")
    stand_at(cast("Run", fake), 3)
    assert fake.trainer.restored == ["after 1"]


def test_a_trained_trainer_without_a_state_to_go_back_to_says_so(tmp_path: Path) -> None:
    fake = FakeRun(tmp_path)
    fake.updated(0, state=False)
    fake.engines.stands_after = "elsewhere"
    with pytest.raises(EngineError, match="no trainer state before step 1"):
        stand_at(cast("Run", fake), 1)


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        (FakeTrainer(error="a logprob is not finite"), "not finite; nothing was published"),
        (FakeTrainer(old=-9.0), "differ by 8 nat a token"),
        (FakeTrainer(old=float("nan")), "all finite: False; nothing to compare; nothing was published"),
    ],
)
def test_what_stopped_a_step_is_kept(tmp_path: Path, trainer: FakeTrainer, said: str) -> None:
    fake = FakeRun(tmp_path, trainer)
    rows = (Sample("e/solver/0", (1,), (2, 3), (-1.0, -1.0), 0.5),)
    selection = Selection("solver", rows, Counts(1, 1, 0, 0, 0))
    with pytest.raises(EngineError, match=said):
        train_role(cast("Run", fake), 4, selection)
    (line,) = (tmp_path / "run/evidence/step-4-solver.jsonl").read_text().splitlines()
    assert json.loads(line)["output_tokens"] == [2, 3]


def test_a_full_disk_is_said_and_waited_for(tmp_path: Path) -> None:
    fake = FakeRun(tmp_path)
    header = json.dumps({"w": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    fake.base = (Policy("solver", 0, str(tmp_path), "d"),)
    with pytest.raises(ConfigError, match=r"a checkpoint of step 3 needs 1525\d+: make room, then `mappa resume"):
        wait_for_room(cast("Run", fake), 3, saving=True)
    fake.base = ()
    wait_for_room(cast("Run", fake), 3, saving=True)
