from pathlib import Path

import pytest

from mappa_core.config import ConfigError
from mappa_core.problems import sets
from mappa_core.types import Key, Problem


def problems(*prompts: str) -> list[Problem]:
    return [Problem(id=f"p{i}-{p[:3]}-{len(p)}{p[-2]}", kind="math", prompt=p) for i, p in enumerate(prompts)]


def put(root: Path, name: str, *prompts: str) -> None:
    rows = problems(*prompts)
    sets.write(root, name, rows, [Key(p.id, "1") for p in rows])


def test_a_set_comes_back_and_keys_are_apart(tmp_path: Path) -> None:
    put(tmp_path, "a/train", "one", "two")
    found = sets.read(tmp_path, "a/train")
    assert [p.prompt for p in found.problems] == ["one", "two"]
    assert found.keys["p1-two-3w"].answer == "1"
    assert "answer" not in (tmp_path / "a/train.problems.jsonl").read_text()


def test_the_digest_sees_keys_too(tmp_path: Path) -> None:
    put(tmp_path, "a", "one")
    before = sets.read(tmp_path, "a").digest
    sets.write(tmp_path, "a", problems("one"), [Key("p0-one-3n", "2")])
    assert sets.read(tmp_path, "a").digest != before


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("a.problems.jsonl", None, "is missing"),
        ("a.keys.jsonl", None, "is missing"),
        ("a.keys.jsonl", '{"problem": "p0-one-3n"}\n', "a.keys.jsonl:1 is not a Key"),
        ("a.keys.jsonl", '{"problem": "p9", "answer": "1"}\n', "exactly one key"),
        ("a.problems.jsonl", "", "exactly one key"),
    ],
)
def test_a_broken_set_is_named(tmp_path: Path, file: str, text: str | None, said: str) -> None:
    put(tmp_path, "a", "one")
    if text is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(text)
    with pytest.raises(ConfigError, match=said):
        sets.read(tmp_path, "a")


def test_each_epoch_draws_every_problem_once() -> None:
    rows = problems(*(f"number {i}" for i in range(12)))
    for epoch in range(3):
        drawn = [p.id for step in range(3) for p in sets.draw(rows, epoch * 3 + step, 4, seed=1)]
        assert sorted(drawn) == sorted(p.id for p in rows)


def test_a_draw_is_a_function_of_seed_and_step() -> None:
    rows = problems(*(f"number {i}" for i in range(40)))
    assert sets.draw(rows, 5, 4, seed=1) == sets.draw(rows, 5, 4, seed=1)
    assert sets.draw(rows, 5, 4, seed=1) != sets.draw(rows, 5, 4, seed=2)
    assert sets.draw(rows, 0, 4, seed=1) != sets.draw(rows, 10, 4, seed=1)


def test_more_problems_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match="lower it"):
        sets.draw(problems("one"), 0, 2, seed=0)


def test_a_leak_names_the_rows(tmp_path: Path) -> None:
    """Invariant 13: a row in another form, and only that one."""
    square, triangle = "Find the area of a square of side $4$ and color red.", "Find the legs of a triangle of area 6."
    put(tmp_path, "train", square, triangle)
    put(
        tmp_path, "heldout", square.replace("4", "15"), "A red-color square of side four: find the area. [asy] 7 [/asy]"
    )
    train, heldout = sets.read(tmp_path, "train"), sets.read(tmp_path, "heldout")
    with pytest.raises(ConfigError, match=rf"share 1 problems \({heldout.problems[1].id} = {train.problems[0].id}\)"):
        sets.check_disjoint(train, heldout)


def test_sets_whose_numbers_differ_are_disjoint(tmp_path: Path) -> None:
    put(tmp_path, "train", "Find the area of a square of side 4.", "Ann has 3 bags of 4 pens. Total?")
    put(tmp_path, "heldout", "Find the area of a square of side 6.", "Ann has 3 bags of 5 pens. Total?!!")
    sets.check_disjoint(sets.read(tmp_path, "train"), sets.read(tmp_path, "heldout"))


def test_two_rows_of_one_id_are_a_leak(tmp_path: Path) -> None:
    for name, prompt in (("train", "one thing"), ("heldout", "another matter")):
        sets.write(tmp_path, name, [Problem("p", "math", prompt)], [Key("p", "1")])
    with pytest.raises(ConfigError, match=r"share 1 problems \(p = p\)"):
        sets.check_disjoint(sets.read(tmp_path, "train"), sets.read(tmp_path, "heldout"))


def test_a_project_has_registered_sets_and_imports(tmp_path: Path) -> None:
    put(tmp_path / "data", "lab/train", "one")
    folder = tmp_path / "imports/mine"
    row = Problem("p", "math", "another")
    origin = sets.Origin("mine.json", "d" * 32, prompt="prompt", answer="answer", id=None)
    card = sets.write_folder(folder, "mine", origin, [row], [Key("p", "1")])
    assert sets.load(tmp_path, "lab/train").problems[0].prompt == "one"
    assert sets.load(tmp_path, "imports/mine").problems == (row,)
    assert sets.load(tmp_path, "imports/mine").digest == card.digest
    folder.rename(tmp_path / "data/mine")
    assert sets.load(tmp_path, "mine").problems == (row,)
    with pytest.raises(ConfigError, match="`mappa data import FILE --as mine` makes it"):
        sets.load(tmp_path, "imports/mine")
