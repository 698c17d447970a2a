"""One step of the `smol` preset: the packaged model on the real stack, by the command a user types."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mappa_core import load_run
from mappa_core.engine import weights

pytestmark = [pytest.mark.stack, pytest.mark.slow]
LIMIT_S = 3600
"""Twenty minutes were seen on two busy cores."""
Smol = Callable[[str], Path]


@pytest.fixture(scope="module")
def smol(project: Path, environment: Callable[[Path], dict[str, str]]) -> Smol:
    """Runs one step, with a small evaluation on either side; its directory."""

    def run(name: str) -> Path:
        settings = ("--set", "steps=1", "--set", "evaluate.problems=2", "--dir", f"runs/{name}")
        command = [sys.executable, "-m", "flows.cli", "run", "smol", *settings]
        done = subprocess.run(
            command, cwd=project, env=environment(project), capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return project / "runs" / name

    return run


@pytest.fixture(scope="module")
def smol_run(smol: Smol) -> Path:
    return smol("smol")


def test_a_step_of_the_real_model(smol_run: Path) -> None:
    found = json.loads((smol_run / "summary.json").read_text())
    assert found["label_free"] is True
    assert found["coach"]["unscored"] == 0
    assert found["success_after"]["n"] == 2
    print(json.dumps({k: found[k] for k in ("seconds", "tokens_per_second", "conservation")}, indent=1))
    episodes = load_run(smol_run).step(0).episodes
    assert len(episodes) == 16
    assert all(len(a.output_tokens) <= 256 for e in episodes for a in e.actions)
    assert {a.role for e in episodes for a in e.actions} == {"solver", "coder", "verifier"}
    assert any(a.execution for e in episodes for a in e.actions), "a program ran"
    base = next(e.actions[0].policy for e in episodes)
    for role in ("solver", "coder", "verifier"):
        trained = found["conservation"][role]["trained"]
        assert found["policy_digests"][role] == weights.digest(smol_run / "policies" / role)
        assert (found["policy_digests"][role] != base) == (trained > 0), role


def test_the_base_is_converted_once(smol_run: Path, smol: Smol) -> None:
    first, again = (json.loads((run / "summary.json").read_text()) for run in (smol_run, smol("smol-again")))
    assert again["policy_digests"] == first["policy_digests"]
    assert again["seconds"]["base"] < 10, "found by its key, its digest checked"
