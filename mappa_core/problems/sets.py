"""Problem sets on disk: `data/<set>.problems.jsonl` and, apart from it, `data/<set>.keys.jsonl`.

Whoever plays reads the first, graders the second. Refuses a set whose problems and keys don't match one to one, and
sets that share a problem where they must not.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from mappa_core.config import ConfigError
from mappa_core.store import adapter, file_digest, write_atomic
from mappa_core.types import Key, Problem

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """A registered set."""

    name: str
    problems: tuple[Problem, ...]
    keys: Mapping[str, Key]
    """By problem id. For graders, and for a coach whose config says that it sees answers."""
    digest: str
    """BLAKE2b-128 over both files."""


def write(root: Path, name: str, problems: Sequence[Problem], keys: Sequence[Key]) -> None:
    """Writes a set under `root`, byte for byte the same for the same rows; ConfigError where keys don't match."""
    if [p.id for p in problems] != [k.problem for k in keys]:
        raise ConfigError(f"{name}: problems and keys don't match one to one: give a key per problem, in order")
    for part, rows in (("problems", problems), ("keys", keys)):
        text = b"".join(adapter(type(row)).dump_json(row) + b"\n" for row in rows).decode()
        write_atomic(root / f"{name}.{part}.jsonl", text)


def read(root: Path, name: str) -> ProblemSet:
    """The set called `name`; ConfigError says what is missing or wrong, with file and line."""
    files = root / f"{name}.problems.jsonl", root / f"{name}.keys.jsonl"
    problems: list[Problem] = _rows(files[0], Problem, name)
    keys: list[Key] = _rows(files[1], Key, name)
    if len({p.id for p in problems}) != len(problems):
        raise ConfigError(f"{files[0]} has two problems of one id: make the ids different")
    if {p.id for p in problems} != {k.problem for k in keys} or len(keys) != len(problems):
        raise ConfigError(f"{files[1]} does not have exactly one key for each problem of {files[0].name}")
    if not problems:
        raise ConfigError(f"{files[0]} is empty: build or import the set again")
    digests = "".join(file_digest(f) for f in files)
    return ProblemSet(name, tuple(problems), {k.problem: k for k in keys}, digests)


def draw(problems: Sequence[Problem], step: int, n: int, seed: int) -> tuple[Problem, ...]:
    """The `n` different problems of training step `step`: a pure function, so a resumed run goes on where it was.

    Each epoch is a shuffle of its own that is used up before the next; a step that reaches past its end skips the rest.
    """
    if n > len(problems):
        raise ConfigError(f"collect.problems = {n}, but the set has {len(problems)}: lower it")
    per_epoch = len(problems) // n
    epoch, place = divmod(step, per_epoch)
    order = random.Random(f"draw/{seed}/{epoch}").sample(range(len(problems)), len(problems))
    return tuple(problems[i] for i in order[place * n : (place + 1) * n])


def check_disjoint(train: ProblemSet, heldout: ProblemSet) -> None:
    """ConfigError names the problems that both sets have, by id or by statement (spacing and case aside)."""
    ids = {p.id for p in train.problems}
    statements = {_plain(p.prompt) for p in train.problems}
    shared = [p.id for p in heldout.problems if p.id in ids or _plain(p.prompt) in statements]
    if shared:
        some = ", ".join(shared[:5])
        raise ConfigError(
            f"{heldout.name} and {train.name} share {len(shared)} problems ({some}): take them out of one"
        )


def _plain(prompt: str) -> str:
    return " ".join(prompt.casefold().split())


def _rows(file: Path, kind: type[Row], name: str) -> list[Row]:
    if not file.is_file():
        raise ConfigError(f"{file} is missing: `mappa data build` makes the lab's sets; {name!r} must be one of data/")
    rows: list[Row] = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            rows.append(adapter(kind).validate_json(line))
        except ValidationError as error:
            raise ConfigError(f"{file}:{number} is not a {kind.__name__}: {error.errors()[0]['msg']}") from error
    return rows
