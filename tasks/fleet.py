"""The engines of a run: sampler and trainer on Ray, and what keeps them honest about which weights they hold."""

from __future__ import annotations

import json
import random
from pathlib import Path

from mappa_core.engine import fleet
from mappa_core.engine.fleet import Fleet
from mappa_core.engine.sampler import LIMITS, Sampler, check_served
from mappa_core.engine.trainer import Trainer
from mappa_core.types import Policy, Sample
from tasks.run import Run

PROBE_TOKENS = 40
"""Length of the probe: more than a block of the sampler's cache, so that a stale cache shows."""


class Engines:
    """A running fleet. `stands_after`: key of the update that the trainer stands right after, "" for none."""

    @classmethod
    def start(cls, run: Run) -> Engines:
        """Starts and waits for sampler and trainer, side by side."""
        config = run.config

        def trainer(cpus: float, threads: int) -> Trainer:
            updates = config.steps * config.learn.updates
            return Trainer.start(run.base, run.base, config.learn, config.engine, updates, cpus, threads)

        def progress(what: str) -> None:
            run.listener("start", 0, {"waiting": what})

        return cls(run, fleet.start(Path(run.base[0].path), config.engine, trainer, progress, run.dir.path / "logs"))

    def __init__(self, run: Run, started: Fleet[Trainer]) -> None:
        self._run = run
        self._fleet = started
        self._served: dict[str, Policy] = {}
        self.stands_after = ""
        self._probe = _probe_tokens(Path(run.base[0].path))
        for policy in run.base:
            run.probes[policy.role, policy.digest] = self._trainer_probe(policy.role)

    @property
    def sampler(self) -> Sampler:
        return self._fleet.sampler

    @property
    def trainer(self) -> Trainer:
        return self._fleet.trainer

    def serve(self, policies: tuple[Policy, ...]) -> None:
        """From now on the sampler serves `policies`; EngineError where it serves other weights than it says."""
        self.sampler.serve(policies)
        for policy in policies:
            before = self._served.get(policy.role)
            if before is not None and before.digest == policy.digest:
                continue
            said = self.sampler.probe(policy.role, self._probe)
            old = self._run.probes[policy.role, before.digest] if before is not None else None
            limits = LIMITS[self._run.config.engine.dtype]
            check_served(policy, said, self._run.probes[policy.role, policy.digest], old, limits)
            self._served[policy.role] = policy

    def probes(self) -> dict[str, list[float]]:
        """The trainer's logprobs of the probe tokens by each policy as it is now."""
        return {policy.role: list(self._trainer_probe(policy.role)) for policy in self._run.base}

    def stop(self) -> None:
        """Ends every process of the fleet."""
        self._fleet.stop()

    def _trainer_probe(self, role: str) -> tuple[float, ...]:
        first, *rest = self._probe
        sample = Sample("probe", (first,), tuple(rest), (0.0,) * len(rest), 0.0)
        old, _ = self.trainer.logprobs(role, [sample])
        return old[0]


def _probe_tokens(base: Path) -> tuple[int, ...]:
    """Fixed tokens of the vocabulary: what they say does not matter, only that weights change their logprobs."""
    size = json.loads((base / "config.json").read_text())["vocab_size"]
    rng = random.Random("probe")
    return tuple(rng.randrange(size) for _ in range(PROBE_TOKENS))
