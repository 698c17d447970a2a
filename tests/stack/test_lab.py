"""The lab on the real stack, by the command a user types."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mappa_core import load_run
from mappa_core.engine import weights
from mappa_core.types import Scored
from tasks import metrics

pytestmark = pytest.mark.stack
Mappa = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_summary_says_what_was_done(small_run: Path) -> None:
    found = json.loads((small_run / "summary.json").read_text())
    assert found["steps"] == 3
    assert found["label_free"] is False
    assert found["engines"]["zero_stage"] == 3
    assert found["engines"]["ranks"] == 2
    assert found["success_before"]["n"] == 24
    assert found["success_before"]["low"] <= found["success_before"]["value"] <= found["success_before"]["high"]
    assert [step for step, _ in found["curve"]] == [0, 2, 3]
    assert found["coach"]["unscored"] == 0
    assert found["resumed_from"] is None
    for stage in ("start", "collect", "score", "grade", "update", "evaluate"):
        assert found["seconds"][stage] >= 0
    for role in ("solver", "coder", "verifier"):
        assert found["policy_digests"][role] == weights.digest(small_run / "policies" / role)


def test_every_action_is_accounted_for(small_run: Path) -> None:
    """Invariant 6, over the whole run."""
    run = load_run(small_run)
    played = [a for step in run.steps() for e in run.step(step).episodes for a in e.actions]
    for role, counts in run.summary()["conservation"].items():
        assert counts["collected"] == sum(a.role == role for a in played)
        assert counts["collected"] == sum(counts[k] for k in ("trained", "unscored", "masked", "skipped"))


def test_rewards_are_the_verdicts(small_run: Path) -> None:
    record = load_run(small_run).step(2)
    for action, credit in record.credits.items():
        verdict = record.verdicts[action]
        assert isinstance(verdict, Scored)
        assert credit.reward == verdict.value / 10


def test_each_step_samples_from_the_weights_of_the_step_before(small_run: Path) -> None:
    run = load_run(small_run)
    digests = [{a.role: a.policy for e in run.step(s).episodes for a in e.actions} for s in run.steps()]
    assert all(digests[0][role] != digests[1][role] != digests[2][role] for role in digests[0])


def test_code_really_ran(small_run: Path) -> None:
    actions = [a for e in load_run(small_run).step(0).episodes for a in e.actions]
    ran = [a.execution for a in actions if a.execution is not None]
    assert any(e.status == "ok" and e.stdout.strip().isdigit() for e in ran)
    assert any("SyntaxError" in e.stderr for e in ran)


def test_actions_as_a_table(small_run: Path) -> None:
    table = load_run(small_run).actions()
    assert set(table.role) == {"solver", "coder", "verifier"}
    assert table.value.between(0, 10).all()
    assert table.groupby("episode").success.nunique().max() == 1


def test_the_same_run_again_computes_nothing(small_run: Path, mappa: Mappa, small: tuple[str, ...]) -> None:
    settings = [word for pair in small for word in ("--set", pair)]
    done = mappa("run", "lab", *settings, "--dir", "runs/again")
    assert done.returncode == 0, done.stderr
    again = json.loads((small_run.parent / "again/summary.json").read_text())
    first = json.loads((small_run / "summary.json").read_text())
    assert again["policy_digests"] == first["policy_digests"]
    assert again["success_after"] == first["success_after"]
    assert again["resumed_from"] == 3
    assert "start" not in again["seconds"], "no engine was needed"


def test_mlflow_has_parameters_metrics_config_pointers_and_plots(small_run: Path, project: Path) -> None:
    found = json.loads((small_run / "summary.json").read_text())
    database = sqlite3.connect(project / "mlruns/mlflow.db")
    names = {n for (n,) in database.execute("select key from metrics where run_uuid = ?", (found["mlflow_run_id"],))}
    from mappa_core.teams import team

    assert names <= metrics.names(team("lab"))
    assert {"collect/success", "evaluate/success", "update/solver/kl_reference", "score/coder/value"} <= names
    params = dict(database.execute("select key, value from params where run_uuid = ?", (found["mlflow_run_id"],)))
    assert params["learn.lr"] == "0.0001"
    steps = database.execute(
        "select count(*), count(distinct step) from metrics where run_uuid = ? and key = 'collect/success'",
        (found["mlflow_run_id"],),
    ).fetchone()
    assert steps == (3, 3), "each step once"
    (artifacts,) = project.glob(f"mlruns/artifacts/lab/{found['mlflow_run_id']}/artifacts")
    for name in ("config.json", "summary.json", "plots/success.png", "plots/kl.png", "plots/score_by_role.png"):
        assert (artifacts / name).is_file()
    pointers = json.loads((artifacts / "checkpoints/00003.json").read_text())["policies"]
    assert {p["role"]: p["digest"] for p in pointers} == found["policy_digests"]


def test_show_prints_an_episode_action_by_action(small_run: Path, mappa: Mappa) -> None:
    episode = load_run(small_run).step(1).episodes[0]
    done = mappa("show", "runs/small", "--step", "1", "--episode", episode.id)
    assert done.returncode == 0
    for word in (
        "solver, turn 0",
        "coder, turn 0",
        "verifier, turn 0",
        "tool:",
        "coach:",
        "reward",
        "advantage",
        "outcome:",
    ):
        assert word in done.stdout
    assert mappa("show", "runs/small").returncode == 0
    assert episode.id in mappa("show", "runs/small", "--step", "1").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "nope"), "unknown preset 'nope'"),
        (("run", "lab", "--set", "learn.lrr=1"), "unknown key learn.lrr"),
        (("run", "lab", "--set", "steps=x"), "steps = 'x'"),
        (("run", "lab", "--set", "data.train=lab/nope"), "lab/nope.problems.jsonl is missing"),
        (("run", "lab", "--set", "data.evaluate=lab/train"), "share"),
        (("run", "lab", "--set", "evaluate.problems=9999"), "lower it"),
        (("run", "lab", "--dir", "runs/small"), "another config"),
        (("run", "lab", "--set", "model.type=local", "--set", "model.path=nowhere"), "nowhere"),
        (("run", "lab", "--set", "engine.max_len=100000"), "engine.max_len"),
        (("show", "runs/nope"), "not a run directory"),
        (("show", "runs/small", "--step", "77"), "no step 77"),
        (("show", "runs/small", "--step", "0", "--episode", "x"), "no episode 'x'"),
        (("grade", "math", "--answer", "1"), "--reference"),
        (("frobnicate",), "invalid choice"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    small_run: Path, mappa: Mappa, arguments: tuple[str, ...], said: str
) -> None:
    before = sorted(p.name for p in small_run.parent.iterdir())
    done = mappa(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert sorted(p.name for p in small_run.parent.iterdir()) == before, "nothing half-written"


def test_a_finished_run_is_evaluated_on_another_set(small_run: Path, mappa: Mappa) -> None:
    done = mappa("evaluate", "runs/small", "--on", "lab/report", "--samples", "1", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["success"]["n"] == 400
    assert small_run.is_dir()


def test_grade_math_as_json(mappa: Mappa) -> None:
    done = mappa("grade", "math", "--answer", "\\boxed{\\frac{1}{2}}", "--reference", "0.5", "--json")
    assert json.loads(done.stdout)["success"] is True
    done = mappa("grade", "math", "--answer", "3", "--reference", "070", "--json")
    assert json.loads(done.stdout)["success"] is False


REST = ("verdicts.jsonl", "outcomes.jsonl", "credits.jsonl", "policy-coder", "trainer")


@pytest.mark.parametrize("kinds", [REST, ("episodes.jsonl",)])
def test_a_flipped_bit_in_an_artifact_of_each_kind_is_named_and_made_again(
    small_run: Path, project: Path, mappa: Mappa, small: tuple[str, ...], kinds: tuple[str, ...]
) -> None:
    """Design invariant 9: damage is never trained on; the run comes out as before."""
    last = [json.loads(p.read_text()) for p in sorted((small_run / "steps/2").glob("*.json"))]
    artifacts = [a for manifest in last for a in manifest["artifacts"] if a["name"] in kinds]
    assert sorted(a["name"] for a in artifacts) == sorted(kinds)
    for artifact in artifacts:
        path = project / ".mappa/store/objects" / artifact["digest"][:2] / artifact["digest"]
        file = path if path.is_file() else max(path.rglob("*"), key=lambda p: p.stat().st_size)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.unlink()  # the run directory's hard link must not change with it
        file.write_bytes(data)
    settings = [word for pair in small for word in ("--set", pair)]
    directory = f"runs/mended-{len(kinds)}"
    done = mappa("run", "lab", *settings, "--dir", directory)
    assert done.returncode == 0, done.stderr
    for kind in kinds:
        assert f"{kind} of " in done.stdout
    mended, first = (json.loads((project / d / "summary.json").read_text()) for d in (directory, "runs/small"))
    assert mended["policy_digests"] == first["policy_digests"]
    assert mended["success_after"] == first["success_after"]
