"""What a person reads: the summary at the end of a run, and a run, a step or an episode looked into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mappa_core.config import ConfigError
from mappa_core.runs import LoadedRun, StepRecord, load_run
from mappa_core.types import Action, Episode, Scored, Verdict

BARS = "▁▂▃▄▅▆▇█"


def console() -> Console:
    """A terminal, or plain text 120 wide where there is none."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=120)


def curve(values: list[float]) -> str:
    """Values from 0 to 1 as a line of blocks."""
    return "".join(BARS[min(int(v * len(BARS)), len(BARS) - 1)] for v in values)


def show_summary(directory: Path) -> None:
    """Success before and after, by role, where the time went, and the commands to look further."""
    run, out = load_run(directory), console()
    found = run.summary()
    before, after = found["success_before"], found["success_after"]
    out.print(f"\n[bold]{found['name']}[/]: {found['steps']} steps, seed {found['seed']}, {_labels(found)}")
    out.print(f"  team success  {_interval(before)} -> [bold]{_interval(after)}[/]   {_n(after)}")
    points = [value for _, value in found["curve"]]
    out.print(f"  held out      {curve(points)}  {' '.join(f'{v:.2f}' for v in points)}")
    out.print(_by_role(found["by_role"]))
    out.print("  time          " + ", ".join(f"{k} {v:.0f} s" for k, v in _by_size(found["seconds"])))
    coach = found["coach"]
    out.print(f"  coach         {coach['type']}: {coach['scored']} actions scored, {coach['unscored']} unscored")
    if found["resumed_from"]:
        out.print(
            f"  reused        {found['resumed_from']} of {found['steps']} updates were stored; --fresh draws a new seed"
        )
    out.print("\nlook further:")
    shown = escape(_relative(directory))
    some = _episode_of_interest(run.step(run.steps()[-1]))
    out.print(f"  mappa show {shown}")
    out.print(f"  mappa show {shown} --step {found['steps'] - 1} --episode '{escape(some)}'")
    out.print(f"  .venv/bin/mlflow ui --backend-store-uri sqlite:///mlruns/mlflow.db   run {found['mlflow_run_id']}")
    out.print(f"  {shown}: config.json, summary.json, steps/, policies/, plots/")


def show_run(run: LoadedRun) -> None:
    """A row per step: success, mean score by role, unscored."""
    out = console()
    table = Table(title=f"{run.config.name}: {run.dir.path}")
    roles: list[str] = []
    for step in run.steps():
        scores: dict[str, float | None] = run.dir.manifest(step, "score").facts["by_role"]
        if not roles:
            roles = list(scores)
            for name in ("step", "success", *roles, "unscored", "held out"):
                table.add_column(name, justify="right")
        success = run.dir.manifest(step, "grade").facts["rates"]["success"]
        held = run.dir.manifest(step, "evaluate").facts["success"]["value"] if run.dir.has(step, "evaluate") else None
        unscored = run.dir.manifest(step, "score").facts["unscored"]
        cells = [_number(scores[r]) for r in roles]
        table.add_row(str(step), f"{success:.2f}", *cells, str(unscored), _number(held, 3) if held is not None else "")
    out.print(table)
    out.print(f"mappa show {_relative(run.dir.path)} --step K shows a step's episodes")


def show_step(run: LoadedRun, step: int) -> None:
    """A row per episode: outcome, and each action's score."""
    record = _record(run, step)
    table = Table(title=f"{run.config.name}, step {step}")
    for name in ("episode", "success", "scores", "why"):
        table.add_column(name)
    for episode in record.episodes:
        outcome = record.outcomes[episode.id]
        scores = " ".join(f"{a.role}/{a.turn} {_score(record.verdicts.get(a.id))}" for a in episode.actions)
        table.add_row(escape(episode.id), "yes" if outcome.success else "no", scores, escape(outcome.why))
    console().print(table)


def show_episode(run: LoadedRun, step: int, name: str) -> None:
    """An episode action by action: what was said, what the tool answered, verdict, reward, advantage."""
    record = _record(run, step)
    episode = next((e for e in record.episodes if e.id == name), None)
    if episode is None:
        raise ConfigError(f"step {step} has no episode {name!r}; `mappa show {run.dir.path} --step {step}` lists them")
    out = console()
    for line in _episode(episode, record):
        out.print(line, markup=False, soft_wrap=True)


def _episode(episode: Episode, record: StepRecord) -> Iterator[str]:
    outcome = record.outcomes[episode.id]
    yield f"episode {episode.id}  ({episode.problem.kind}, {episode.problem.stratum}), step {record.step}"
    yield f"problem: {episode.problem.prompt}"
    for action in episode.actions:
        yield ""
        yield from _action(action, record)
    yield ""
    facts = ", ".join(f"{name} {'yes' if value else 'no'}" for name, value in outcome.metrics.items())
    yield f"outcome: {'success' if outcome.success else 'failure'} ({outcome.why}); {facts}"


def _action(action: Action, record: StepRecord) -> Iterator[str]:
    end = ", truncated" if action.finish_reason == "length" else ""
    yield f"-- {action.role}, turn {action.turn}: {len(action.output_tokens)} tokens{end}, policy {action.policy[:8]}"
    yield from (f"   {line}" for line in action.text.splitlines())
    if action.execution is not None:
        done = action.execution
        yield f"   tool: {done.status}, exit code {done.exit_code}"
        yield from (f"   | {line}" for line in (done.stdout + done.stderr).splitlines())
    verdict, credit = record.verdicts.get(action.id), record.credits.get(action.id)
    if isinstance(verdict, Scored):
        blame = f", blames {verdict.blame}" if verdict.blame else ""
        yield f"   coach: {verdict.value:g}/10{blame}: {verdict.reason}"
    elif verdict is not None:
        yield f"   coach: unscored: {verdict.cause}"
    trained = f"reward {credit.reward:.2f}, advantage {credit.advantage:+.2f}" if credit else "not trained on"
    yield f"   {trained}"


def _record(run: LoadedRun, step: int) -> StepRecord:
    if step not in run.steps():
        have = run.steps()
        raise ConfigError(
            f"{run.dir.path} has no step {step}; it has {have[0]} to {have[-1]}" if have else "no step yet"
        )
    return run.step(step)


def _episode_of_interest(record: StepRecord) -> str:
    """A failed episode if there is one: there is more to see in it."""
    failed = [e.id for e in record.episodes if not record.outcomes[e.id].success]
    return failed[0] if failed else record.episodes[0].id


def _by_role(roles: dict[str, dict[str, Any]]) -> Table:
    table = Table(show_edge=False, pad_edge=True, box=None)
    for name in ("  role", "what", "before", "after"):
        table.add_column(name, justify="left" if name in ("  role", "what") else "right")
    for role, rates in roles.items():
        for name, value in rates.items():
            digits = 1 if name in ("tokens", "turns") else 2
            table.add_row(f"  {role}", name, _number(value["before"], digits), _number(value["after"], digits))
    return table


def _labels(found: dict[str, Any]) -> str:
    return "label-free" if found["label_free"] else "the coach sees answers (not label-free)"


def _interval(found: dict[str, float]) -> str:
    return f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def _n(found: dict[str, float]) -> str:
    return f"(n = {found['n']} held-out episodes, 95 % interval)"


def _by_size(seconds: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(((k, v) for k, v in seconds.items() if v >= 0.5), key=lambda kv: -kv[1])


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _score(verdict: Verdict | None) -> str:
    return f"{verdict.value:g}" if isinstance(verdict, Scored) else "-"


def _relative(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_absolute() and path.is_relative_to(Path.cwd()) else str(path)
