"""A training in progress: its config, places, data and live engines. What a stage needs, and who is told of it.

Engines start at the first stage that needs them: a run whose stages are all stored never starts one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mappa_core.chat import Chat
from mappa_core.config import ConfigError, ExperimentConfig
from mappa_core.problems import sets
from mappa_core.problems.sets import ProblemSet
from mappa_core.store import Manifest, RunDir, Store
from mappa_core.teams import team
from mappa_core.types import Policy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tasks.fleet import Engines

Listener = Callable[[str, int, Mapping[str, Any]], None]
"""Told (stage, step, facts): when a stage begins, with no facts, and when it is done, with them."""


class Run:
    """One training. Close it: it may hold engines."""

    def __init__(self, config: ExperimentConfig, directory: Path, root: Path, listener: Listener) -> None:
        """`root`: the project's folder, which has `data/`, and `.mappa/` for what runs share."""
        self.config = config
        self.dir = RunDir(directory)
        self.root = root
        self.listener = listener
        self.store = Store(root / ".mappa" / "store")
        self.team = team(config.team)
        self.train: ProblemSet = sets.load(root, config.data.train)
        self.heldout: ProblemSet = sets.load(root, config.data.evaluate)
        sets.check_disjoint(self.train, self.heldout)
        if config.evaluate.problems > len(self.heldout.problems):
            raise ConfigError(
                f"evaluate.problems = {config.evaluate.problems}, but {config.data.evaluate} has "
                f"{len(self.heldout.problems)}: lower it"
            )
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.computed: set[str] = set()
        """Keys of the stages that were computed here; the others were found."""
        self.unpruned: dict[int, Manifest] = {}
        """Updates whose payloads may still be in the store, by step; the latest that `retain` saw among them."""
        self.base: tuple[Policy, ...] = ()
        """The frozen base of each role, set by the stage `base`."""
        self.probes: dict[tuple[str, str], tuple[float, ...]] = {}
        """The trainer's logprobs of the probe tokens, by role and digest: what the sampler's are checked against."""
        self.begun = time.monotonic()

    @cached_property
    def speakers(self) -> dict[str, Chat]:
        """Each role's own chat template."""
        chats = {policy.path: Chat(policy.path) for policy in self.base}
        return {policy.role: chats[policy.path] for policy in self.base}

    @cached_property
    def engines(self) -> Engines:
        """Sampler and trainer, started now."""
        from tasks.fleet import Engines

        with self.timed("start", 0):
            return Engines.start(self)

    @contextmanager
    def timed(self, stage: str, step: int) -> Iterator[dict[str, Any]]:
        """Counts the seconds of a stage and tells the listener; put the stage's facts into what it yields."""
        facts: dict[str, Any] = {}
        self.listener(stage, step, {})
        begun, inner = time.monotonic(), sum(self.seconds.values())
        yield facts
        within = sum(self.seconds.values()) - inner  # a stage may start the engines: counted once, as theirs
        self.seconds[stage] += time.monotonic() - begun - within
        self.listener(stage, step, facts or {"done": True})

    @property
    def elapsed(self) -> float:
        """Seconds since the run was opened."""
        return time.monotonic() - self.begun

    def close(self) -> None:
        """Stops the engines, if they were started."""
        if "engines" in self.__dict__:
            self.engines.stop()
            del self.__dict__["engines"]
