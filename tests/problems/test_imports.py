"""Files of problems as people have them: what is read of them, and what is refused, with file and row."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as arrow
import pytest
from pyarrow import parquet

from mappa_core.config import ConfigError
from mappa_core.problems import imports, sets
from mappa_core.problems.imports import Wanted

ROWS = [
    {"id": "a", "prompt": "What is 1 + 2?", "answer": "3"},
    {"id": "b", "prompt": "What is, in short, 4 + 5?\nSay it.", "answer": "9"},
]


def bring_in(source: Path, project: Path, wanted: Wanted = Wanted(), name: str = "mine") -> imports.Import:  # noqa: B008
    return imports.bring_in(source, name, project, wanted, lambda answer: answer != "unreadable")


def put(file: Path, data: object) -> Path:
    file.write_text(json.dumps(data))
    return file


def as_json(folder: Path) -> Path:
    return put(folder / "rows.json", ROWS)


def as_object(folder: Path) -> Path:
    return put(folder / "object.json", {"version": 1, "data": ROWS})


def as_jsonl(folder: Path) -> Path:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "\n")
    return folder / "rows.jsonl"


def as_jsonl_called_json(folder: Path) -> Path:
    return as_jsonl(folder).rename(folder / "lines.json")


def as_csv(folder: Path) -> Path:
    text = '\ufeffid,prompt,answer\r\na,What is 1 + 2?,3\r\nb,"What is, in short, 4 + 5?\nSay it.",9\r\n'
    (folder / "rows.csv").write_bytes(text.encode())
    return folder / "rows.csv"


def as_parquet(folder: Path) -> Path:
    parquet.write_table(arrow.Table.from_pylist(ROWS), folder / "rows.parquet")
    return folder / "rows.parquet"


@pytest.mark.parametrize("form", [as_json, as_object, as_jsonl, as_jsonl_called_json, as_csv, as_parquet])
def test_every_form_gives_the_same_rows(tmp_path: Path, form) -> None:  # noqa: ANN001
    made = bring_in(form(tmp_path), tmp_path)
    found = sets.load(tmp_path, "imports/mine")
    assert [(p.id, p.kind, p.prompt) for p in found.problems] == [
        ("mine-a", "math", "What is 1 + 2?"),
        ("mine-b", "math", "What is, in short, 4 + 5?\nSay it."),
    ]
    assert [found.keys[p.id].answer for p in found.problems] == ["3", "9"]
    assert sorted(p.name for p in made.folder.iterdir()) == ["card.json", "keys.jsonl", "problems.jsonl"]
    assert sorted(p.name for p in made.folder.parent.iterdir()) == ["mine"]


def test_the_card_says_where_the_rows_come_from(tmp_path: Path) -> None:
    card = bring_in(as_json(tmp_path), tmp_path).card
    assert card == sets.card(tmp_path / "imports/mine")
    assert (card.origin.file, card.origin.id, card.origin.prompt, card.origin.answer, card.problems) == (
        "rows.json",
        "id",
        "prompt",
        "answer",
        2,
    )
    assert card.digest == sets.load(tmp_path, "imports/mine").digest


@pytest.mark.parametrize(
    ("columns", "used"),
    [
        (("ID", "Problem", "Solution", "Answer"), ("ID", "Problem", "Answer")),
        (("problem_idx", "problem", "answer"), ("problem_idx", "problem", "answer")),
        (("unique_id", "problem", "solution"), ("unique_id", "problem", "solution")),
        (("url", "question", "expected_answer"), ("url", "question", "expected_answer")),
        (("Question", "Final Answer"), (None, "Question", "Final Answer")),
        (("url", "id", "prompt", "answer"), ("id", "prompt", "answer")),
    ],
)
def test_columns_are_recognised_by_their_usual_names(
    tmp_path: Path, columns: tuple[str, ...], used: tuple[str | None, ...]
) -> None:
    origin = bring_in(put(tmp_path / "a.json", [dict.fromkeys(columns, "7")]), tmp_path).card.origin
    assert (origin.id, origin.prompt, origin.answer) == used


def test_columns_that_are_named_win(tmp_path: Path) -> None:
    rows = [{"id": 1, "name": "x", "text": "What is 3 + 4?", "prompt": "Be brief.", "answer": "?", "sum": 7}]
    bring_in(put(tmp_path / "a.json", rows), tmp_path, Wanted(id="name", prompt="text", answer="sum"))
    (problem,) = sets.load(tmp_path, "imports/mine").problems
    assert (problem.id, problem.prompt) == ("mine-x", "What is 3 + 4?")


def test_ids_made_from_statements_do_not_depend_on_the_order(tmp_path: Path) -> None:
    rows = [{"prompt": row["prompt"], "answer": row["answer"]} for row in ROWS]
    bring_in(put(tmp_path / "a.json", rows), tmp_path)
    bring_in(put(tmp_path / "b.json", rows[::-1]), tmp_path, name="other")
    ids = [[p.id.split("-")[1] for p in sets.load(tmp_path, f"imports/{name}").problems] for name in ("mine", "other")]
    assert ids[0] == ids[1][::-1]
    assert len(set(ids[0])) == 2


@pytest.mark.parametrize(
    ("answer", "key"),
    [
        (142.0, "142"),
        (0.5, "0.5"),
        (7, "7"),
        (" 070 ", "070"),
        ("336^\\circ", "336^\\circ"),
        ("We add. So \\boxed{1} is wrong, and it is $\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
        ("She sold 48/2 = 24 clips.\n#### 72", "72"),
    ],
)
def test_the_answer_of_a_row(tmp_path: Path, answer: object, key: str) -> None:
    bring_in(put(tmp_path / "a.json", [{"id": 1, "prompt": "p", "answer": answer}]), tmp_path)
    assert sets.load(tmp_path, "imports/mine").keys["mine-1"].answer == key


def test_what_to_look_at_is_named(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "prompt": "Find the area of a square with a side of length 4 and a red diagonal.", "answer": "16"},
        {"id": 2, "prompt": "A square has a red diagonal and a side of length four. Find the area.", "answer": "16"},
        {"id": 3, "prompt": "Find the smaller one of 8 and 9.", "answer": "080 or 081 (both were accepted)"},
    ]
    made = bring_in(put(tmp_path / "a.json", rows), tmp_path)
    assert [(pair.a, pair.b) for pair in made.repeated] == [("mine-1", "mine-2")]
    assert made.wordy == ("mine-3",)


def test_the_same_file_again_changes_nothing_and_another_is_refused(tmp_path: Path) -> None:
    first = bring_in(as_json(tmp_path), tmp_path)
    assert bring_in(as_json(tmp_path), tmp_path) == first
    with pytest.raises(ConfigError, match="holds another import"):
        bring_in(put(tmp_path / "a.json", ROWS[:1]), tmp_path)
    assert sorted(p.name for p in first.folder.parent.iterdir()) == ["mine"]


def test_an_import_that_was_changed_is_refused(tmp_path: Path) -> None:
    folder = bring_in(as_json(tmp_path), tmp_path).folder
    keys = folder / "keys.jsonl"
    keys.write_text(keys.read_text().replace('"9"', '"8"'))
    with pytest.raises(ConfigError, match=r"not what its card\.json describes"):
        sets.load(tmp_path, "imports/mine")
    (folder / "card.json").write_text("{")
    with pytest.raises(ConfigError, match=r"no whole card\.json"):
        sets.load(tmp_path, "imports/mine")


GOOD = b'{"id": 1, "prompt": "p", "answer": 1}'


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.txt", GOOD, r"give a file that ends in \.json"),
        ("a.json", b"", r"a\.json:1 is not JSON"),
        ("a.json", b"[" + GOOD + b',\n{"id": 2, "pro', r"a\.json:2 is not JSON .*is the file whole"),
        ("a.json", b'"text"', "holds no list"),
        ("a.json", b"[]", "has no rows"),
        ("a.json", b"[1]", "row 1 is not an object"),
        ("a.json", b'{"a": {"b": 1}}', "an object with 0 lists"),
        ("a.json", b'{"a": [1], "b": [2]}', "an object with 2 lists"),
        ("a.json", b"[" * 100_000, "is not JSON"),
        ("a.jsonl", GOOD + b"\n" + GOOD[:20], r"a\.jsonl:2 is not JSON .*is the file whole"),
        ("a.jsonl", GOOD + b"\n[1]\n", r"a\.jsonl:2 is not an object"),
        ("a.json", b"[" + GOOD + b"," + GOOD + b"]", r"row 2 and .*row 1 have the same id '1': .*--make-ids"),
        ("a.json", b"[" + GOOD + b',{"prompt": "q", "answer": 1}]', "row 2 has no id: .*--make-ids"),
        ("a.json", b'[{"id": 1, "prompt": " ", "answer": 1}]', "row 1 has no prompt"),
        ("a.json", b'[{"id": 1, "prompt": "p", "answer": null}]', "row 1 has no answer"),
        ("a.json", b'[{"id": 1, "prompt": "p", "answer": NaN}]', "row 1 has no answer"),
        ("a.json", b'[{"id": 1, "prompt": "p", "answer": true}]', "answer is a bool"),
        ("a.json", b'[{"id": 1, "prompt": ["p"], "answer": 1}]', "prompt is a list.*--prompt-column"),
        ("a.json", b'[{"id": 1, "prompt": "p\\ud83d", "answer": 1}]', "half a character"),
        ("a.json", b'[{"id": 1, "prompt": "p", "answer": "unreadable"}]', "row 1: the answer 'unreadable' can't"),
        ("a.json", b'[{"id": 1, "text": "p", "answer": 1}]', "no column for the prompt among id, text, answer"),
        ("a.json", b'[{"id": 1, "prompt": "p"}]', "no column for the answer among id, prompt: .*--answer-column"),
        ("a.json", b'[{"prompt": "p", "answer": 1}, {"prompt": "p", "answer": 2}]', "have the same statement"),
        ("a.csv", b"id,prompt,answer\n1,p,1\n2,q\n", r"a\.csv:3 has 2 cells and the header 3"),
        ("a.csv", b"id,prompt,answer\n1,p,1\n2,q,\n", r"a\.csv:3 has no answer"),
        ("a.csv", b'id,prompt,answer\n1,"p,1\n', r"a\.csv:2 is not CSV .*is the file whole"),
        ("a.csv", b"id,prompt,prompt\n1,p,1\n", "names a column twice"),
        ("a.csv", b"", "has no rows"),
        ("a.csv", "id,prompt,answer\n1,caf\u00e9,1\n".encode("latin1"), r"a\.csv:2 is not UTF-8: .*iconv"),
        ("a.json", "[]".encode("utf-16"), "is not UTF-8"),
        ("a.parquet", b"PAR1 torn", "is not Parquet"),
        ("a.parquet", b"", "is not Parquet"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=said) as caught:
        bring_in(tmp_path / name, tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "imports").exists()


def test_a_torn_parquet_is_refused(tmp_path: Path) -> None:
    file = as_parquet(tmp_path)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="is not Parquet"):
        bring_in(file, tmp_path)


@pytest.mark.parametrize(
    ("wanted", "name", "said"),
    [
        (Wanted(id="nope"), "mine", r"--id-column nope: .*has no such column, but id, prompt, answer"),
        (Wanted(prompt="nope"), "mine", "--prompt-column nope"),
        (Wanted(), "../mine", r"--as '\.\./mine'"),
        (Wanted(), "", "--as ''"),
        (Wanted(), ".mine", "starts with"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, wanted: Wanted, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bring_in(as_json(tmp_path), tmp_path, wanted, name)
    assert not (tmp_path / "imports").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        bring_in(tmp_path / "nope.json", tmp_path)


@pytest.mark.parametrize(
    ("file", "rows", "make_ids", "first"),
    [
        ("AIME_1983_2024.json", 933, False, "mine-1983-1"),
        ("aime_2025.json", 30, False, None),
        ("aime_eval_32.json", 32, True, None),
        ("amc.json", 117, False, "mine-0"),
        ("amc_eval_32.json", 32, False, "mine-72"),
    ],
)
def test_the_public_files_are_read(
    data_dir: Path, tmp_path: Path, file: str, rows: int, make_ids: bool, first: str | None
) -> None:
    bring_in(data_dir / file, tmp_path, Wanted(make_ids=make_ids))
    found = sets.load(tmp_path, "imports/mine")
    assert len(found.problems) == rows
    assert first is None or found.problems[0].id == first
    assert not any(key.answer.endswith(".0") for key in found.keys.values())


def test_a_public_file_with_ids_in_some_rows_only_says_what_to_do(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"row 25 has no id: .*--make-ids"):
        bring_in(data_dir / "aime_eval_32.json", tmp_path)
