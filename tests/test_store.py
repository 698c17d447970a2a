import json
import multiprocessing
from pathlib import Path

import pytest

from mappa_core.config import ConfigError, parse
from mappa_core.store import Artifact, RunDir, Store, file_digest, write_atomic
from mappa_core.types import Key

ROWS = [Key("a", "1"), Key("b", "2", "1+1")]
CONFIG = {"name": "lab", "steps": 2, "team": "lab", "model": {"type": "lab"}}


def made(store: Store, rows: list[Key] = ROWS) -> tuple[list[Artifact], dict[str, int]]:
    return [store.put_rows("keys.jsonl", Key, rows)], {"n": len(rows)}


def test_rows_come_back_as_they_went_in(tmp_path: Path) -> None:
    store = Store(tmp_path)
    artifact = store.put_rows("keys.jsonl", Key, ROWS)
    assert store.rows(artifact, Key) == ROWS
    assert store.put_rows("other name", Key, ROWS).digest == artifact.digest


def test_a_stage_is_computed_once(tmp_path: Path) -> None:
    store, calls = Store(tmp_path), []

    def compute() -> tuple[list[Artifact], dict[str, int]]:
        calls.append(1)
        return made(store)

    first, second = store.stage("s", "k", compute), store.stage("s", "k", compute)
    assert first == second
    assert first.facts == {"n": 2}
    assert len(calls) == 1


@pytest.mark.parametrize("damage", ["flipped", "torn", "gone", "manifest torn"])
def test_a_damaged_stage_is_computed_again(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    manifest = store.stage("s", "k", lambda: made(store))
    payload = store.path(manifest["keys.jsonl"])
    if damage == "flipped":
        payload.write_bytes(payload.read_bytes().replace(b"1", b"3", 1))
    elif damage == "torn":
        payload.write_bytes(payload.read_bytes()[:-5])
    elif damage == "gone":
        payload.unlink()
    else:
        file = tmp_path / "stages" / "k.json"
        file.write_text(file.read_text()[:-20])
    assert store.find("k") is None
    (said,) = store.damaged
    assert ("k.json is torn" if damage == "manifest torn" else "keys.jsonl of s") in said
    again = store.stage("s", "k", lambda: made(store))
    assert store.rows(again["keys.jsonl"], Key) == ROWS


def test_damaged_rows_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    artifact = store.put_rows("keys.jsonl", Key, ROWS)
    store.path(artifact).write_text("{}")
    with pytest.raises(ValueError, match="damaged"):
        store.rows(artifact, Key)


def test_a_folder_is_adopted_whole_and_its_digest_sees_names_and_bytes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = store.scratch("policy")
    (folder / "a").write_text("1")
    artifact = store.adopt("policy", folder)
    assert not folder.exists()
    assert (store.path(artifact) / "a").read_text() == "1"
    other = store.scratch("policy")
    (other / "b").write_text("1")
    assert store.adopt("policy", other).digest != artifact.digest


def count(root: Path) -> None:
    store = Store(root)

    def compute() -> tuple[list[Artifact], dict[str, int]]:
        with (root / "calls").open("a") as file:
            file.write("x")
        return made(store)

    store.stage("s", "k", compute)


def test_two_that_miss_at_once_wait_for_one(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=count, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert (tmp_path / "calls").read_text() == "x"


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, "old")
    with pytest.raises(TypeError):
        write_atomic(path, 3)  # pyright: ignore[reportArgumentType]
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_run_directory_holds_manifests_and_links(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    run = RunDir.create(tmp_path / "run", parse(CONFIG, "test"))
    manifest = store.stage("collect", "k", lambda: made(store))
    run.record(3, manifest, store)
    assert run.manifest(3, "collect") == manifest
    assert file_digest(tmp_path / "run/steps/3/keys.jsonl") == manifest["keys.jsonl"].digest
    assert run.steps() == [3]
    with pytest.raises(ConfigError, match="no collect of step 4"):
        run.manifest(4, "collect")


def test_a_run_directory_of_another_config_is_refused(tmp_path: Path) -> None:
    RunDir.create(tmp_path / "run", parse(CONFIG, "test"))
    RunDir.create(tmp_path / "run", parse(CONFIG, "test"))
    with pytest.raises(ConfigError, match="another config"):
        RunDir.create(tmp_path / "run", parse(CONFIG | {"seed": 1}, "test"))


def test_a_folder_that_is_no_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not a run directory"):
        RunDir.create(tmp_path, parse(CONFIG, "test"))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_config_comes_back_from_its_run(tmp_path: Path) -> None:
    config = parse(CONFIG | {"learn": {"lr": 1e-5}}, "test")
    assert RunDir.create(tmp_path / "run", config).config() == config
    assert json.loads((tmp_path / "run/config.json").read_text())["learn"]["lr"] == 1e-5


def test_a_pruned_payload_is_gone_and_its_manifest_believed_until_it_is_made_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    manifest = store.stage("s", "k", lambda: made(store))
    store.prune(manifest["keys.jsonl"])
    assert not store.path(manifest["keys.jsonl"]).exists()
    assert not store.has(manifest["keys.jsonl"])
    assert store.find("k") == manifest
    store.put_rows("keys.jsonl", Key, ROWS)
    assert store.has(manifest["keys.jsonl"])
    store.path(manifest["keys.jsonl"]).unlink()
    assert store.find("k") is None, "the mark went when the payload came back"


def test_what_a_killed_process_had_in_the_making_is_swept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    mine, dead = store.scratch("policy"), tmp_path / "tmp" / "policy-4194999-abc"
    dead.mkdir()
    store.sweep()
    assert mine.is_dir()
    assert not dead.exists()


def test_a_run_is_held_by_one_process(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run", parse(CONFIG, "test"))
    with (
        run.held(),
        pytest.raises(ConfigError, match=r"being trained by process \d+: wait for it, or stop it"),
        RunDir(tmp_path / "run").held(),
    ):
        pass
    with run.held():
        pass
    run.check(parse(CONFIG, "test"))


@pytest.mark.parametrize(
    ("text", "said"),
    [('{"name": "lab"', "is not JSON"), (json.dumps(CONFIG | {"oops": 1}), "unknown key oops"), ("[]", "config")],
)
def test_a_config_that_was_edited_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        RunDir(tmp_path).config()
    assert "\n" not in str(caught.value)


def test_a_torn_manifest_of_a_run_is_one_line(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run", parse(CONFIG, "test"))
    (tmp_path / "run/steps/0").mkdir(parents=True)
    (tmp_path / "run/steps/0/update.json").write_text('{"stage": "upd')
    with pytest.raises(ConfigError, match=r"update\.json is torn: delete it"):
        run.manifest(0, "update")
