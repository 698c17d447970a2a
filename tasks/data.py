"""Data: builds the sets under `data/`, brings in those of others, compares them, and says which version is there."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import yaml

from mappa_core.config import ConfigError
from mappa_core.graders import math
from mappa_core.problems import imports, lab, overlap, sets, words
from mappa_core.store import file_digest, write_atomic

SEED = 2026
"""Of the sets: theirs, not a run's."""
MADE = {"lab": lab.generate, "words": words.generate}
"""Folders of `data/` that `build` makes anew: no import may have their names."""


def build(root: Path) -> Path:
    """Makes the generated sets under `root/data` anew, byte for byte the same everywhere; that folder."""
    for name, generate in MADE.items():
        _build(root, name, generate(SEED))
    return root / "data"


def _build(root: Path, generator: str, splits: lab.Splits) -> None:
    folder = root / "data" / generator
    shutil.rmtree(folder, ignore_errors=True)
    counts: dict[str, dict[str, object]] = {}
    for name in lab.SPLITS:
        rows: lab.Rows = getattr(splits, name)
        sets.write(root / "data", f"{generator}/{name}", rows.problems, rows.keys)
        strata = Counter(problem.stratum for problem in rows.problems)
        counts[name] = {"problems": len(rows.problems), "strata": dict(sorted(strata.items()))}
    card = {
        "name": generator,
        "source": f"mappa_core.problems.{generator}, seed {SEED}; made by `mappa data build`",
        "licence": "Apache-2.0",
        "splits": counts,
        "files": {p.name: file_digest(p) for p in sorted(folder.glob("*.jsonl"))},
    }
    write_atomic(folder / "card.json", json.dumps(card, indent=1) + "\n")


def recorded(root: Path) -> str:
    """The MD5 of `data/` that data.dvc records; ConfigError where there is no such file."""
    file = root / "data.dvc"
    if not file.is_file():
        raise ConfigError(f"{file} is missing: run from the project's folder")
    return yaml.safe_load(file.read_text())["outs"][0]["md5"]


def bring_in(root: Path, source: Path, name: str, wanted: imports.Wanted) -> imports.Import:
    """Makes `root/imports/NAME` from a file of mathematical problems; ConfigError names file and row."""
    return imports.bring_in(source, name, root, wanted, _readable)


def add(root: Path, name: str) -> Path:
    """Copies the import called `name` to `root/data/NAME`, so that DVC sees it; the folder."""
    name = name.removeprefix(f"{sets.IMPORTS}/")
    if not imports.NAME.fullmatch(name) or name in MADE:
        raise ConfigError(f"--add {name!r}: give the name of an import, other than {', '.join(MADE)}")
    found, folder = sets.load(root, f"{sets.IMPORTS}/{name}"), root / "data" / name
    if folder.exists():
        if sets.load(root, name).digest != found.digest:
            raise ConfigError(f"{folder} is another set: import under another name, or delete the folder")
        return folder
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root / sets.IMPORTS, prefix=".add.") as made:
        shutil.copytree(root / sets.IMPORTS / name, Path(made) / name).rename(folder)
    return folder


def registered(root: Path) -> list[str]:
    """The names of the sets under `root/data`, sorted."""
    data = root / "data"
    split = [p.relative_to(data).as_posix().removesuffix(".problems.jsonl") for p in data.glob("**/*.problems.jsonl")]
    return sorted([*split, *(p.parent.relative_to(data).as_posix() for p in data.glob("*/problems.jsonl"))])


def shared(root: Path, a: str, b: str) -> list[overlap.Pair]:
    """The rows of set `a` that are near-duplicates of rows of set `b`, most similar first."""
    return overlap.between(sets.load(root, a).problems, sets.load(root, b).problems)


def _readable(answer: str) -> bool:
    """Whether the grader can read this answer as a reference."""
    try:
        math.grade(answer, answer, math.OUTCOME_TIMEOUT_S)
    except ValueError:
        return False
    return True
