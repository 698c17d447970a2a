"""Data: builds the lab's sets under `data/`, and says which version of the data is there."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import yaml

from mappa_core.config import ConfigError
from mappa_core.problems import lab, sets
from mappa_core.store import file_digest, write_atomic

SEED = 2026
"""Of the lab's sets: theirs, not a run's."""


def build(root: Path) -> Path:
    """Makes `root/data/lab` anew, byte for byte the same everywhere; the folder."""
    folder = root / "data" / "lab"
    shutil.rmtree(folder, ignore_errors=True)
    splits = lab.generate(SEED)
    counts: dict[str, dict[str, object]] = {}
    for name in lab.SPLITS:
        rows: lab.Rows = getattr(splits, name)
        sets.write(root / "data", f"lab/{name}", rows.problems, rows.keys)
        strata = Counter(problem.stratum for problem in rows.problems)
        counts[name] = {"problems": len(rows.problems), "strata": dict(sorted(strata.items()))}
    card = {
        "name": "lab",
        "source": f"mappa_core.problems.lab, seed {SEED}; made by `mappa data build`",
        "licence": "Apache-2.0",
        "splits": counts,
        "files": {p.name: file_digest(p) for p in sorted(folder.glob("*.jsonl"))},
    }
    write_atomic(folder / "card.json", json.dumps(card, indent=1) + "\n")
    return folder


def recorded(root: Path) -> str:
    """The MD5 of `data/` that data.dvc records; ConfigError where there is no such file."""
    file = root / "data.dvc"
    if not file.is_file():
        raise ConfigError(f"{file} is missing: run from the project's folder")
    return yaml.safe_load(file.read_text())["outs"][0]["md5"]
