"""`mappa data ...` as it is typed: what is printed, and one line with exit code 2 for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.cli import main
from mappa_core.problems import sets
from mappa_core.types import Key, Problem

SQUARE = "Find the area of a square with a side of length 4 and a red diagonal."
TRIANGLE = "Find the area of a right triangle with legs of length 5 and 12."


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project that is the working directory, with two files of problems."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "train.json", ("s", SQUARE), ("t", TRIANGLE))
    write(tmp_path / "test.json", ("x", f"{SQUARE}\n[asy] draw((1,2)--(3,4)); [/asy]"), ("y", "What is 7 * 8?"))
    return tmp_path


def write(file: Path, *rows: tuple[str, str]) -> None:
    file.write_text(json.dumps([{"id": i, "problem": prompt, "answer": 1} for i, prompt in rows]))


def test_import_check_and_add(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "import", "train.json", "--as", "a"]) == 0
    assert "imports/a is made: 2 problems from problem, answers from answer, ids from id" in capsys.readouterr().out
    assert main(["data", "import", "test.json", "--as", "b", "--make-ids"]) == 0
    assert "ids made from the statements" in capsys.readouterr().out

    assert main(["data", "build", "--add", "a"]) == 0
    assert "`dvc add data`" in capsys.readouterr().out
    assert main(["data", "build", "--add", "imports/b"]) == 0
    assert "b shares 1 problems with a" in capsys.readouterr().out
    assert main(["data", "build"]) == 0
    for name in ("a", "b"):
        assert sets.load(project, name).digest == sets.load(project, f"imports/{name}").digest
    assert sorted(p.name for p in (project / "imports").iterdir()) == ["a", "b"]

    assert main(["data", "check", "imports/a", "b", "--json"]) == 1
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    (pair,) = found["overlap"]
    assert pair["a"] == "a-s"
    assert pair["b"].startswith("b-")
    assert pair["similarity"] == 1.0
    assert main(["data", "check", "a", "b"]) == 1
    assert "share 1 pairs" in capsys.readouterr().out
    assert main(["data", "check", "a", "lab/train"]) == 0
    assert "share 0 pairs" in capsys.readouterr().out


def test_adding_again_is_no_error_and_another_set_of_that_name_is(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(["data", "import", "train.json", "--as", "a"]) == 0
        assert main(["data", "build", "--add", "a"]) == 0
    (project / "imports/a").rename(project / "imports/old")
    assert main(["data", "import", "test.json", "--as", "a"]) == 0
    capsys.readouterr()
    assert main(["data", "build", "--add", "a"]) == 2
    assert "data/a is another set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("import", "nope.json", "--as", "a"), "no such file: nope.json"),
        (("import", "train.json"), "--as"),
        (("import", "train.json", "--as", "a/b"), "--as 'a/b'"),
        (("import", "train.json", "--as", "a", "--answer-column", "key"), "--answer-column key"),
        (("import", "torn.json", "--as", "a"), "torn.json:2 is not JSON"),
        (("import", "twice.json", "--as", "a"), "have the same id 'x'"),
        (("import", "prose.json", "--as", "a"), "prose.json, row 1: the answer 'See the"),
        (("build", "--add", "nope"), "`mappa data import FILE --as nope` makes it"),
        (("build", "--add", "lab"), "--add 'lab'"),
        (("build", "--add", "../a"), "--add '../a'"),
        (("check", "imports/nope", "lab/train"), "`mappa data import FILE --as nope` makes it"),
        (("check", "lab/train", "nope"), "must be one of data/"),
        (("check", "lab/train"), "required"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    (project / "torn.json").write_text((project / "train.json").read_text().replace("}, ", "},\n")[:-20])
    write(project / "twice.json", ("x", SQUARE), ("x", TRIANGLE))
    prose = [{"id": 1, "problem": "p", "answer": "See the diagram. We let x be the answer so that it is large"}]
    (project / "prose.json").write_text(json.dumps(prose))
    sets.write(project / "data", "lab/train", [Problem("p", "lab", "One?")], [Key("p", "1")])
    before = sorted(p for p in project.rglob("*") if ".mappa" not in p.parts)
    try:
        code = main(["data", *arguments])
    except SystemExit as exit_:
        code = exit_.code
    error = capsys.readouterr().err
    assert code == 2
    assert said in error
    assert len(error.strip().splitlines()) == 1, error
    assert sorted(p for p in project.rglob("*") if ".mappa" not in p.parts) == before, "nothing half-written"
