"""Problem sets on disk: `data/<set>.problems.jsonl` and, apart from it, `data/<set>.keys.jsonl`.

Whoever plays reads the first, graders the second. A set that was brought in is a folder, `imports/NAME` or `data/NAME`,
with problems.jsonl, keys.jsonl and a card that has their digest. Refuses a set whose problems and keys don't match one
to one, a folder that its card doesn't describe, and sets that share a problem where they must not.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from mappa_core.config import ConfigError
from mappa_core.problems import overlap
from mappa_core.store import adapter, file_digest, json_lines, write_atomic
from mappa_core.types import Key, Problem

Row = TypeVar("Row")
IMPORTS = "imports"
"""The project's folder of sets that were brought in and are not versioned."""


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """A registered set."""

    name: str
    problems: tuple[Problem, ...]
    keys: Mapping[str, Key]
    """By problem id. For graders, and for a coach whose config says that it sees answers."""
    digest: str
    """BLAKE2b-128 over both files."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The file that a set was brought in from, and the columns that were used of it."""

    file: str
    """Its name."""
    digest: str
    """BLAKE2b-128 of its bytes."""
    prompt: str
    answer: str
    id: str | None
    """None: ids are digests of the statements."""


@dataclass(frozen=True, slots=True)
class Card:
    """What a set that was brought in is: its card.json."""

    name: str
    kind: str
    origin: Origin
    problems: int
    digest: str
    """Of the rows, as in `ProblemSet`."""


class Files(NamedTuple):
    problems: Path
    keys: Path


def write(root: Path, name: str, problems: Sequence[Problem], keys: Sequence[Key]) -> None:
    """Writes a set under `root`, byte for byte the same for the same rows; ConfigError where keys don't match."""
    _write(Files(root / f"{name}.problems.jsonl", root / f"{name}.keys.jsonl"), name, problems, keys)


def write_folder(folder: Path, name: str, origin: Origin, problems: Sequence[Problem], keys: Sequence[Key]) -> Card:
    """Writes a set that was brought in, and its card; ConfigError where keys don't match."""
    files = _in(folder)
    _write(files, name, problems, keys)
    made = Card(name, problems[0].kind, origin, len(problems), _digest(files))
    write_atomic(folder / "card.json", adapter(Card).dump_json(made, indent=1).decode() + "\n")
    return made


def load(project: Path, name: str) -> ProblemSet:
    """The set called `name` of a project: of its `imports/` where the name begins so, else of its `data/`."""
    return read(project if name.startswith(f"{IMPORTS}/") else project / "data", name)


def read(root: Path, name: str) -> ProblemSet:
    """The set called `name` under `root`; ConfigError says what is missing or wrong, with file and line."""
    folder = root / name
    brought_in = name.startswith(f"{IMPORTS}/") or _in(folder).problems.is_file()
    files = _in(folder) if brought_in else Files(root / f"{name}.problems.jsonl", root / f"{name}.keys.jsonl")
    problems: list[Problem] = _rows(files.problems, Problem, name)
    keys: list[Key] = _rows(files.keys, Key, name)
    if len({p.id for p in problems}) != len(problems):
        raise ConfigError(f"{files.problems} has two problems of one id: make the ids different")
    if {p.id for p in problems} != {k.problem for k in keys} or len(keys) != len(problems):
        raise ConfigError(f"{files.keys} does not have exactly one key for each problem of {files.problems.name}")
    if not problems:
        raise ConfigError(f"{files.problems} is empty: build or import the set again")
    digest = _digest(files)
    if brought_in and card(folder).digest != digest:
        raise ConfigError(f"{folder} is not what its card.json describes: delete the folder and import the set again")
    return ProblemSet(name, tuple(problems), {k.problem: k for k in keys}, digest)


def card(folder: Path) -> Card:
    """The card of a set that was brought in; ConfigError where it has none that can be read."""
    try:
        return adapter(Card).validate_json((folder / "card.json").read_bytes())
    except (FileNotFoundError, ValidationError) as error:
        raise ConfigError(f"{folder} has no whole card.json: delete the folder and import the set again") from error


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
    """ConfigError names the rows that both sets have: of one id, or near-duplicates (`overlap`)."""
    ids = {p.id for p in train.problems}
    same = {p.id: f"{p.id} = {p.id}" for p in heldout.problems if p.id in ids}
    for pair in overlap.between(train.problems, heldout.problems):
        same.setdefault(pair.b, f"{pair.b} = {pair.a}")
    if same:
        some = ", ".join(list(same.values())[:5])
        raise ConfigError(
            f"{heldout.name} and {train.name} share {len(same)} problems ({some}{', ...' if len(same) > 5 else ''}): "
            f"take them out of one; `mappa data check {heldout.name} {train.name}` lists them"
        )


def _in(folder: Path) -> Files:
    return Files(folder / "problems.jsonl", folder / "keys.jsonl")


def _write(files: Files, name: str, problems: Sequence[Problem], keys: Sequence[Key]) -> None:
    if [p.id for p in problems] != [k.problem for k in keys]:
        raise ConfigError(f"{name}: problems and keys don't match one to one: give a key per problem, in order")
    write_atomic(files.problems, json_lines(Problem, problems).decode())
    write_atomic(files.keys, json_lines(Key, keys).decode())


def _digest(files: Files) -> str:
    """BLAKE2b-128 of each file, one after the other."""
    return "".join(file_digest(file) for file in files)


def _rows(file: Path, kind: type[Row], name: str) -> list[Row]:
    if not file.is_file():
        raise ConfigError(f"{file} is missing: {_remedy(name)}")
    rows: list[Row] = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            rows.append(adapter(kind).validate_json(line))
        except ValidationError as error:
            raise ConfigError(f"{file}:{number} is not a {kind.__name__}: {error.errors()[0]['msg']}") from error
    return rows


def _remedy(name: str) -> str:
    if name.startswith(f"{IMPORTS}/"):
        return f"`mappa data import FILE --as {name.removeprefix(f'{IMPORTS}/')}` makes it"
    return f"`mappa data build` makes the shipped sets; {name!r} must be one of data/"
