"""Each invariant's test can fail: a named sabotage of the code turns it red.

The code is copied, one line is changed, and the invariant's own test is run on the copy: it must fail, not crash.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
FAILED = 1
"""pytest's exit code where tests ran and some failed; a test that can't be collected is another one."""


class Sabotage(NamedTuple):
    """`line` of `file`, which must be there once, becomes `instead`; then `test` must fail."""

    name: str
    file: str
    line: str
    instead: str
    test: str


SABOTAGES: tuple[Sabotage, ...] = ()


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=[s.name for s in SABOTAGES])
def test_the_sabotage_turns_its_test_red(sabotage: Sabotage, tmp_path: Path) -> None:
    for name in ("mappa_core", "tasks", "flows", "configs", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    file = tmp_path / sabotage.file
    source = file.read_text()
    assert source.count(sabotage.line) == 1, f"{sabotage.file} has changed: {sabotage.line!r} must be there once"
    file.write_text(source.replace(sabotage.line, sabotage.instead))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", sabotage.test]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == FAILED, done.stdout[-3000:] + done.stderr[-1000:]
