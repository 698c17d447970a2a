"""What makes a function a stage: a key of all it depends on, a Prefect task under that key, a verified manifest.

The manifest in the store is the truth; Prefect's cache is a shortcut that is checked before it is believed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol

from prefect import task

from mappa_core.store import Artifact, Manifest
from tasks.run import Run

P = ParamSpec("P")


class Made(NamedTuple):
    """What a stage made: payloads in the store, and small facts about them (plain JSON data)."""

    artifacts: list[Artifact]
    facts: dict[str, Any]


class Stage(Protocol[P]):
    """A stage as the flow calls it."""

    def __call__(self, run: Run, step: int, /, *args: P.args, **kwargs: P.kwargs) -> Manifest: ...


def stage(
    name: str,
    key: Callable[Concatenate[Run, int, P], str],
    compute: Callable[Concatenate[Run, int, P], Made],
    retries: int = 0,
) -> Stage[P]:
    """The stage `name`: computed where its key is not stored, recorded in the run directory under its step.

    Retried only where asked: a stage that changed an engine's state half-way must not be tried again on it.
    """

    @task(
        name=name,
        task_run_name=name + " {step}",
        cache_key_fn=lambda _, parameters: parameters["key"],
        persist_result=True,
        retries=retries,
        retry_delay_seconds=2,
    )
    def body(key: str, step: int, run: Run, args: tuple[Any, ...]) -> Manifest:
        def make() -> Made:
            run.computed.add(key)
            return compute(run, step, *args)  # pyright: ignore[reportCallIssue]  # args are P's, passed on by `call`

        return run.store.stage(name, key, make)

    def call(run: Run, step: int, /, *args: P.args, **kwargs: P.kwargs) -> Manifest:
        stored = key(run, step, *args, **kwargs)
        with run.timed(name, step) as facts:
            manifest = body(stored, step, run, args)
            if stored not in run.computed and not run.store.whole(manifest):
                manifest = body.with_options(refresh_cache=True)(stored, step, run, args)
            while run.store.damaged:
                run.listener(name, step, {"damaged": run.store.damaged.pop(0)})
            facts.update(manifest.facts, reused=stored not in run.computed)
        run.dir.record(step, manifest, run.store)
        return manifest

    return call
