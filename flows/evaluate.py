"""The `evaluate` flow: the policies of a run play a registered set; success with an interval. No coach, no update."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect import flow

from flows.progress import Telling
from mappa_core.config import ConfigError
from mappa_core.engine import weights
from mappa_core.problems import sets
from mappa_core.store import RunDir
from mappa_core.types import Policy
from tasks.base import base
from tasks.evaluate import evaluate
from tasks.run import Run


@flow(name="evaluate", flow_run_name="evaluate {directory} on {on}", persist_result=False)
def evaluate_run(directory: str, on: str, samples: int) -> dict[str, Any]:
    """The facts of the evaluation: `success` (value, low, high, n) and `rates`."""
    source = RunDir(Path(directory))
    trained = source.config()
    root = Path.cwd()
    problems = len(sets.load(root, on).problems)
    chosen = {"problems": problems, "samples": samples}
    config = trained.model_copy(
        update={
            "data": trained.data.model_copy(update={"evaluate": on}),
            "evaluate": trained.evaluate.model_copy(update=chosen),
        }
    )
    with Telling(1) as tell:
        run = Run(config, source.path / "evaluations" / on.replace("/", "-"), root, tell)
        try:
            base(run)
            run.base = _policies(source, run)  # what the engines hold: these weights, and nothing is trained
            return evaluate(run, trained.steps, run.base).facts
        finally:
            run.close()


def _policies(source: RunDir, run: Run) -> tuple[Policy, ...]:
    """The last policies of a run, from `policies/`."""
    out: list[Policy] = []
    for policy in run.base:
        path = source.path / "policies" / policy.role
        if not path.is_dir():
            raise ConfigError(f"{path} is missing: the run has not ended; finish it first")
        out.append(replace(policy, version=1, path=str(path.absolute()), digest=weights.digest(path)))
    return tuple(out)
