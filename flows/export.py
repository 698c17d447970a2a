"""`mappa export`: the trained weights of one role as a Hugging Face directory of its own, for transformers and vLLM.

Weights, config, tokenizer and chat template, no trainer state. Copied, not linked: who edits the export must not reach
the run. Refuses an unknown role, a run that has not ended, weights that are not those the summary names, and a place
that is taken.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from mappa_core import load_run
from mappa_core.config import ConfigError
from mappa_core.engine import weights
from mappa_core.types import Policy


def export(directory: Path, role: str, to: Path | None) -> Path:
    """Writes the last policy of `role` of the run in `directory` to `to`, whole or not at all; where it is.

    `to`: None is DIR/export/ROLE. ConfigError in one line where it can't be done.
    """
    run = load_run(directory)
    summary = run.summary()
    digests: dict[str, str] = summary["policy_digests"]
    if role not in digests:
        raise ConfigError(f"--role {role!r}: {directory} has {', '.join(sorted(digests))}")
    source, target = directory / "policies" / role, to or directory / "export" / role
    if target.exists():
        raise ConfigError(f"{target} exists: give another --to, or delete it")
    weights.check(Policy(role, summary["steps"], str(source), digests[role]))
    _copy(source, target)
    return target


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        staging.chmod(0o755)
        for file in sorted(source.iterdir()):
            shutil.copyfile(file, staging / file.name)
        weights.swap(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
