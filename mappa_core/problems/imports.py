"""Brings in mathematical problems that someone has as JSON, JSON lines, CSV or Parquet.

A column is recognised by its usual name, or given. Refuses, with file and row: what can't be read, a row without
statement, answer or id, and two rows that are one; then nothing is written.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from mappa_core.config import ConfigError
from mappa_core.problems import overlap, sets
from mappa_core.store import file_digest
from mappa_core.types import Key, Problem

KIND = "math"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
IDS = ("id", "unique_id", "uid", "problem_id", "question_id", "problem_idx", "idx", "index", "url", "link")
PROMPTS = ("prompt", "problem", "question", "statement")
ANSWERS = ("answer", "expected_answer", "final_answer", "ground_truth", "target", "solution")
"""Usual names, the likeliest first; case, spaces and hyphens don't matter."""
_GIVEN = {"id": "--id-column", "prompt": "--prompt-column", "answer": "--answer-column"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns that the user named; None: recognise it."""

    id: str | None = None
    prompt: str | None = None
    answer: str | None = None
    make_ids: bool = False
    """Ids are digests of the statements, whatever columns there are."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row as the file has it."""

    where: str
    """FILE:LINE, or the row's number, from 1."""
    cells: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Import:
    """A set that was brought in, and what its owner should look at."""

    folder: Path
    card: sets.Card
    repeated: tuple[overlap.Pair, ...]
    """Near-duplicates inside the set."""
    wordy: tuple[str, ...]
    """Ids of the problems whose answer is prose, or a number and prose."""


def bring_in(source: Path, name: str, project: Path, wanted: Wanted, readable: Callable[[str], bool]) -> Import:
    """Makes `imports/NAME` of `project` from a file, whole or not at all. `readable`: a grader can read this answer."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"--as {name!r}: a name has letters, digits, '.', '_' and '-' only, and starts with one")
    rows = lines(source)
    origin = _origin(source, rows, wanted)
    problems, keys = _problems(rows, name, origin)
    for row, key in zip(rows, keys, strict=True):
        if not readable(key.answer):
            raise ConfigError(f"{row.where}: the answer {key.answer[:80]!r} can't be graded: mend it, {_or('answer')}")
    folder = project / sets.IMPORTS / name
    card = _publish(folder, name, origin, problems, keys)
    wordy = tuple(k.problem for k in keys if re.search(r"(?<![\\A-Za-z])[A-Za-z]{3,}\s", k.answer))
    return Import(folder, card, tuple(overlap.within(problems)), wordy)


def lines(source: Path) -> list[Line]:
    """The rows of a .json, .jsonl, .csv or .parquet file; ConfigError says which row is not one."""
    readers = {".json": _json, ".jsonl": _jsonl, ".ndjson": _jsonl, ".csv": _csv, ".parquet": _parquet}
    reader = readers.get(source.suffix.lower())
    if not source.is_file():
        raise ConfigError(f"no such file: {source}")
    if reader is None:
        raise ConfigError(f"{source}: give a file that ends in {', '.join(readers)}")
    rows = reader(source)
    if not rows:
        raise ConfigError(f"{source} has no rows")
    return rows


def _json(source: Path) -> list[Line]:
    text = _text(source)
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and text.lstrip().startswith("{"):
            return _jsonl(source)  # one object a line, whatever the file is called
        where = f"{source}:{error.lineno}"
        raise ConfigError(f"{where} is not JSON ({error.msg}): is the file whole? Fetch or export it again") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is not JSON that can be read ({error}): export it again") from error
    if isinstance(data, dict):
        lists = [value for value in data.values() if isinstance(value, list)]
        if len(lists) != 1:
            raise ConfigError(
                f"{source} is an object with {len(lists)} lists: give a list of objects, or one in an object"
            )
        data = lists[0]
    if not isinstance(data, list):
        raise ConfigError(f"{source} holds no list: give a list of objects")
    return [_line(f"{source}, row {i}", row) for i, row in enumerate(data, start=1)]


def _jsonl(source: Path) -> list[Line]:
    rows = []
    for number, text in enumerate(_text(source).split("\n"), start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise ConfigError(f"{source}:{number} is not JSON ({why}): is the file whole? Export it again") from error
        rows.append(_line(f"{source}:{number}", row))
    return rows


def _csv(source: Path) -> list[Line]:
    reader = csv.reader(io.StringIO(_text(source), newline=""), strict=True)
    rows: list[Line] = []
    try:
        header = next(reader, [])
        if len(set(header)) != len(header):
            raise ConfigError(f"{source}:1 names a column twice: rename one")
        for cells in reader:
            if cells and len(cells) != len(header):
                raise ConfigError(
                    f"{source}:{reader.line_num} has {len(cells)} cells and the header {len(header)}: is the "
                    "file whole, with commas between cells and quotes around text that has commas?"
                )
            if cells:
                rows.append(Line(f"{source}:{reader.line_num}", dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise ConfigError(f"{source}:{reader.line_num} is not CSV ({error}): is the file whole?") from error
    return rows


def _parquet(source: Path) -> list[Line]:
    import pyarrow as arrow
    from pyarrow import parquet

    try:
        data = parquet.ParquetFile(source).read().to_pylist()
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        why = str(error).split(".")[0]
        raise ConfigError(f"{source} is not Parquet that can be read ({why}): fetch or export it again") from error
    return [_line(f"{source}, row {i}", row) for i, row in enumerate(data, start=1)]


def _text(source: Path) -> str:
    data = source.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{source}:{number} is not UTF-8: convert it, e.g. iconv -f latin1 -t utf-8") from error


def _line(where: str, row: object) -> Line:
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is not an object: give objects with a column for prompt and answer")
    return Line(where, row)


def _origin(source: Path, rows: Sequence[Line], wanted: Wanted) -> sets.Origin:
    """Which columns are used; ConfigError where one can't be told."""
    columns = list(dict.fromkeys(column for row in rows for column in row.cells))
    prompt = _column("prompt", wanted.prompt, PROMPTS, columns, source)
    answer = _column("answer", wanted.answer, ANSWERS, columns, source)
    for part, column in (("prompt", prompt), ("answer", answer)):
        if column is None:
            has = ", ".join(columns)
            raise ConfigError(f"{source} has no column for the {part} among {has}: name it with {_GIVEN[part]}")
    assert prompt is not None
    assert answer is not None
    given = None if wanted.make_ids else _column("id", wanted.id, IDS, columns, source)
    return sets.Origin(source.name, file_digest(source), prompt, answer, given)


def _column(part: str, wanted: str | None, usual: tuple[str, ...], columns: Sequence[str], source: Path) -> str | None:
    """The column called `wanted`; without one, that with the likeliest usual name, or None."""
    if wanted is not None:
        if wanted not in columns:
            raise ConfigError(f"{_GIVEN[part]} {wanted}: {source} has no such column, but {', '.join(columns)}")
        return wanted
    plain = {re.sub(r"[\s-]+", "_", column.strip().casefold()): column for column in columns}
    return next((plain[name] for name in usual if name in plain), None)


def _problems(rows: Sequence[Line], name: str, origin: sets.Origin) -> tuple[list[Problem], list[Key]]:
    problems: dict[str, Problem] = {}
    places: dict[str, str] = {}
    keys: list[Key] = []
    for row in rows:
        prompt = _cell(row, origin.prompt, "prompt")
        own = _digest(prompt) if origin.id is None else " ".join(_cell(row, origin.id, "id").split())
        name_of = f"{name}-{own}"
        if name_of in problems:
            both = f"{row.where} and {places[name_of]} have the same"
            if origin.id is None:
                raise ConfigError(f"{both} statement: take one out")
            raise ConfigError(f"{both} {origin.id} {own!r}: make them different, {_or('id')}")
        problems[name_of] = Problem(name_of, KIND, prompt)
        places[name_of] = row.where
        keys.append(Key(name_of, answer_in(_cell(row, origin.answer, "answer"))))
    return list(problems.values()), keys


def answer_in(text: str) -> str:
    r"""The answer in a worked solution: what its last \boxed{} holds, or what follows its last ####; else all of it."""
    boxes = list(re.finditer(r"\\boxed\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}", text))
    found = boxes[-1][1] if boxes else text.rpartition("####")[2]
    return found.strip() or text


def _cell(row: Line, column: str, part: str) -> str:
    """The text of a cell; ConfigError where there is none."""
    text = _as_text(row.cells.get(column))
    if text is None:
        kind = type(row.cells[column]).__name__
        raise ConfigError(f"{row.where}: {column} is a {kind}, not a text or number: {_or(part, '')}")
    if not text.strip():
        raise ConfigError(f"{row.where} has no {column}: fill it in or take the row out, {_or(part)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{row.where}: {column} has half a character (a lone surrogate): mend it") from error
    return text if part == "prompt" else text.strip()


def _as_text(value: object) -> str | None:
    """A cell as text, "" where it is empty, None where it is neither text nor number. A whole float loses its ".0"."""
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else str(value)
    if value is None or isinstance(value, float) or (isinstance(value, Decimal) and not value.is_finite()):
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        return None
    return str(value)


def _or(part: str, first: str = "or ") -> str:
    """The option that helps where a column is wrong."""
    said = f"{first}name another column with {_GIVEN[part]}"
    return f"{said}, or make all ids from the statements with --make-ids" if part == "id" else said


def _digest(prompt: str) -> str:
    """An id that is the same wherever the statement stands."""
    return hashlib.blake2b(prompt.encode(), digest_size=8).hexdigest()


def _publish(
    folder: Path, name: str, origin: sets.Origin, problems: Sequence[Problem], keys: Sequence[Key]
) -> sets.Card:
    """Writes the set beside `folder` and moves it there; ConfigError where something else has its place."""
    folder.parent.mkdir(exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{name}."))
    try:
        made.chmod(0o755)  # a temporary folder is born private
        card = sets.write_folder(made, name, origin, problems, keys)
        if not folder.exists():
            made.rename(folder)
        elif sets.card(folder) != card or sets.read(folder.parent, name).digest != card.digest:
            raise ConfigError(f"{folder} holds another import: choose another --as, or delete the folder")
        return card
    finally:
        shutil.rmtree(made, ignore_errors=True)
