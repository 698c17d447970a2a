"""One step of the `smol` preset: the packaged model on the real stack, by the command a user types."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mappa_core import load_run
from mappa_core.engine import weights

pytestmark = [pytest.mark.stack, pytest.mark.slow]
Mappa = Callable[..., "subprocess.CompletedProcess[str]"]
RUN = ("run", "smol", "--set", "steps=1", "--set", "evaluate.problems=8", "--dir", "runs/smol")


@pytest.fixture(scope="module")
def smol_run(project: Path, mappa: Mappa) -> Path:
    """The directory of a run of one step, with a small evaluation on either side."""
    done = mappa(*RUN)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return project / "runs/smol"


def test_a_step_of_the_real_model(smol_run: Path) -> None:
    found = json.loads((smol_run / "summary.json").read_text())
    assert found["label_free"] is True
    assert found["coach"]["unscored"] == 0
    assert found["success_after"]["n"] == 8
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


def test_the_base_is_converted_once(smol_run: Path, mappa: Mappa) -> None:
    done = mappa(*RUN[:-1], "runs/smol-again")
    assert done.returncode == 0, done.stderr
    again = json.loads((smol_run.parent / "smol-again/summary.json").read_text())
    assert again["policy_digests"] == json.loads((smol_run / "summary.json").read_text())["policy_digests"]
    assert again["seconds"]["base"] < 10, "found by its key, its digest checked"
