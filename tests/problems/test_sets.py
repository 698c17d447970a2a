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
    put(tmp_path, "train", "What is 1 + 1?", "What is 2 + 2?")
    put(tmp_path, "heldout", "what  is 2 + 2?", "What is 3 + 3?")
    train, heldout = sets.read(tmp_path, "train"), sets.read(tmp_path, "heldout")
    with pytest.raises(ConfigError, match="share 1 problems \\(p0-wha-152\\)"):
        sets.check_disjoint(train, heldout)
