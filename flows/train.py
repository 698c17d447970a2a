"""The `train` flow: a team learns, step by step. Read `train` first; the rest opens and closes what it works with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.runtime import flow_run

from flows.progress import Telling
from mappa_core import config as configs
from mappa_core.config import ExperimentConfig, LocalModel
from mappa_core.engine.preflight import preflight
from mappa_core.store import Manifest, RunDir
from mappa_core.types import Policy
from tasks import metrics
from tasks.base import base, gate
from tasks.collect import collect
from tasks.evaluate import evaluate
from tasks.grade import grade
from tasks.orphans import end_orphans, mark
from tasks.retain import retain
from tasks.run import Listener, Run
from tasks.score import score, scoring
from tasks.summary import plots, summary
from tasks.track import Tracker, track
from tasks.update import published, update


class Opened(NamedTuple):
    """What a run works with."""

    run: Run
    tracker: Tracker
    tell: Telling


class Step(NamedTuple):
    """The manifests of a training step."""

    episodes: Manifest
    verdicts: Manifest
    outcomes: Manifest
    learned: Manifest


@flow(name="train", flow_run_name="{config.name}", persist_result=False)
def train(config: ExperimentConfig, directory: str | None = None) -> str:
    """Trains a team; the run directory."""
    with opened(config, directory) as (run, tracker, tell):
        policies = base(run)
        gate(run, policies)
        evaluation = evaluate(run, 0, policies)
        track(tracker, 0, {}, policies, metrics.of_evaluation(evaluation))
        for step in range(config.steps):
            done = train_step(run, step, policies)
            policies = published(run, step + 1, done.learned)
            report(tracker, tell, step, done, policies, evaluated(run, step + 1, policies))
            retain(run, step + 1)
        finish(run, tracker, policies)
    return str(run.dir.path)


@flow(name="train-preset", flow_run_name="{preset}", persist_result=False)
def train_preset(preset: str = "lab", overrides: list[str] | None = None, directory: str | None = None) -> str:
    """Trains a preset with a seed of its own for each scheduled time, so that a nightly run trains and is no replay."""
    planned = flow_run.scheduled_start_time
    assert planned is not None
    seed = int(planned.timestamp()) % 2**31
    return train(configs.load(preset, [f"seed={seed}", *(overrides or [])]), directory)


def train_step(run: Run, step: int, policies: tuple[Policy, ...]) -> Step:
    """The team plays, the coach scores, the policies learn; graded beside it, which nothing here depends on."""
    with scoring(run) as coach:
        episodes = collect(run, step, policies, coach)
        verdicts = score(run, step, episodes, coach)
    outcomes = grade(run, step, episodes)
    learned = update(run, step, policies, episodes, verdicts)
    return Step(episodes, verdicts, outcomes, learned)


def evaluated(run: Run, steps: int, policies: tuple[Policy, ...]) -> Manifest | None:
    """The evaluation after `steps` steps, where one is due."""
    due = steps == run.config.steps or steps % run.config.evaluate.every == 0
    return evaluate(run, steps, policies) if due else None


def report(
    tracker: Tracker, tell: Telling, step: int, done: Step, policies: tuple[Policy, ...], evaluation: Manifest | None
) -> None:
    """MLflow, Prefect's table and the terminal get the step's numbers."""
    values = metrics.of_step(done.episodes, done.verdicts, done.outcomes, done.learned)
    track(tracker, step + 1, values, policies, metrics.of_evaluation(evaluation) if evaluation else {})
    rows = [{"metric": name, "value": value} for name, value in sorted(values.items())]
    create_table_artifact(rows, key="step", description=f"training step {step + 1}")
    tell.step(step, values["collect/success"], done.verdicts.facts["by_role"])


def finish(run: Run, tracker: Tracker, policies: tuple[Policy, ...]) -> None:
    """The summary goes into the run directory, and with the plots to MLflow."""
    made = summary(run, policies, tracker.run_id)
    figures = plots(run)
    (run.dir.path / "plots").mkdir(exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(run.dir.path / "plots" / f"{name}.png", dpi=120)
    run.dir.link_policies(policies)
    tracker.finish(made, figures)
    run.dir.write("summary.json", made)


def prepared(config: ExperimentConfig, directory: str | None, listener: Listener) -> Run:
    """The run, checked in all that can be before anything is allocated or written; UserError says what is wrong."""
    root = Path.cwd()
    path = Path(directory) if directory else new_directory(config, root)
    model = Path(config.model.path) if isinstance(config.model, LocalModel) else None
    run = Run(config, path, root, listener)
    preflight(config, model, path, policies=len(run.team.roles))
    run.dir.check(config)
    return run


def new_directory(config: ExperimentConfig, root: Path) -> Path:
    """Where a run goes that was given no place."""
    return root / "runs" / f"{config.name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


@contextmanager
def opened(config: ExperimentConfig, directory: str | None) -> Iterator[Opened]:
    """What a run works with; closed again, whatever happens."""
    with Telling(config.steps) as tell:
        run = prepared(config, directory, tell)
        run.dir = RunDir.create(run.dir.path, config)
        with run.dir.held():
            end_orphans(run.dir.path)
            mark(run.dir.path)
            run.store.sweep()
            tracker = Tracker(run)
            try:
                yield Opened(run, tracker, tell)
            except BaseException:
                tracker.fail()
                raise
            finally:
                run.close()
