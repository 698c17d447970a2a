"""Track: the only place that calls MLflow. Parameters, metrics, the resolved config, checkpoint pointers and plots.

Without MLFLOW_TRACKING_URI it all goes to `mlruns/` in the project's folder: an SQLite database, artifacts beside it.
A step is logged once per run directory, however often it is resumed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from prefect import task
from prefect.cache_policies import NO_CACHE

from mappa_core.config import ExperimentConfig
from mappa_core.store import write_atomic
from mappa_core.types import Policy
from tasks import metrics
from tasks.data import recorded
from tasks.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KIND = {"mlflow.experimentKind": "custom_model_development"}
"""MLflow's pages then show charts of metrics first, not evaluations of an application."""


def uri(root: Path) -> str:
    """Where MLflow logs to: what its environment says, else the project's own database."""
    if mlflow.is_tracking_uri_set():
        return mlflow.get_tracking_uri()
    return f"sqlite:///{(root / 'mlruns' / 'mlflow.db').absolute()}"


class Tracker:
    """The MLflow run of a run directory, begun or continued."""

    def __init__(self, run: Run) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self._run = run
        self._file = run.dir.path / "mlflow.json"
        (run.root / "mlruns").mkdir(exist_ok=True)
        with run.store.lock("mlflow"):  # several processes that make one database at a time all fail
            self._client = MlflowClient(uri(run.root))
            experiment = self._experiment(run.config.name)
        if self._file.is_file():
            kept = json.loads(self._file.read_text())
            self.run_id, self._logged = kept["run_id"], set(kept["logged"])
            self._client.update_run(self.run_id, status="RUNNING")
        else:
            self.run_id, self._logged = self._begin(experiment), set()
            self._keep()

    def log(self, name: str, step: int, values: Mapping[str, float]) -> None:
        """Logs `values` at `step`, once; KeyError where one is not in the list of names."""
        unknown = values.keys() - metrics.names(self._run.team)
        if unknown:
            raise KeyError(f"metrics {sorted(unknown)} are not in tasks/metrics.py: add them there")
        if f"{name} {step}" in self._logged:
            return
        now = int(time.time() * 1000)
        self._client.log_batch(self.run_id, metrics=[Metric(k, v, now, step) for k, v in values.items()])
        self._logged.add(f"{name} {step}")
        self._keep()

    def checkpoint(self, step: int, policies: tuple[Policy, ...]) -> None:
        """Logs where the policies after `step` steps lie, and their digests: pointers, not copies."""
        pointers = [{"role": p.role, "version": p.version, "digest": p.digest, "path": p.path} for p in policies]
        if f"checkpoint {step}" not in self._logged:
            self._client.log_dict(self.run_id, {"policies": pointers}, f"checkpoints/{step:05}.json")
            self._logged.add(f"checkpoint {step}")
            self._keep()

    def finish(self, summary: Mapping[str, Any], figures: Mapping[str, Figure]) -> None:
        """Logs summary and plots, and ends the run well."""
        self._client.log_dict(self.run_id, dict(summary), "summary.json")
        for name, figure in figures.items():
            self._client.log_figure(self.run_id, figure, f"plots/{name}.png")
        self._client.set_terminated(self.run_id, "FINISHED")

    def fail(self) -> None:
        """Marks the run as failed."""
        self._client.set_terminated(self.run_id, "FAILED")

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return found.experiment_id
        folder = (self._run.root / "mlruns" / "artifacts" / name).absolute()
        local = not mlflow.is_tracking_uri_set()
        place = folder.as_uri() if local else None
        return self._client.create_experiment(name, artifact_location=place, tags=KIND)

    def _begin(self, experiment: str) -> str:
        run, config = self._run, self._run.config
        tags = {
            "label_free": str(config.label_free).lower(),
            "run_directory": str(run.dir.path.absolute()),
            "data_digest": run.train.digest,
            "heldout_digest": run.heldout.digest,
            "data_dvc_md5": recorded(run.root),
        }
        made = self._client.create_run(experiment, run_name=run.dir.path.name)
        self._client.log_batch(
            made.info.run_id,
            params=[Param(k, v) for k, v in flat(config).items()],
            tags=[RunTag(k, v) for k, v in tags.items()],
        )
        self._client.log_dict(made.info.run_id, config.model_dump(mode="json"), "config.json")
        return made.info.run_id

    def _keep(self) -> None:
        write_atomic(self._file, json.dumps({"run_id": self.run_id, "logged": sorted(self._logged)}))


def flat(config: ExperimentConfig) -> dict[str, str]:
    """The config as `section.key` -> text."""
    out: dict[str, str] = {}
    for name, value in config.model_dump(mode="json").items():
        for key, leaf in value.items() if isinstance(value, dict) else [(None, value)]:
            out[f"{name}.{key}" if key else name] = str(leaf)
    return out


@task(name="track", task_run_name="track {step}", cache_policy=NO_CACHE, retries=3, retry_delay_seconds=[1, 5, 20])
def track(
    tracker: Tracker,
    step: int,
    steps: Mapping[str, float],
    policies: tuple[Policy, ...],
    evaluation: Mapping[str, float],
) -> None:
    """Logs a step that was made (`steps`), an evaluation of the policies after it, or both."""
    if steps:
        tracker.log("step", step, steps)
    if evaluation:
        tracker.log("evaluation", step, evaluation)
    tracker.checkpoint(step, policies)
