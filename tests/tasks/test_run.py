import time
from pathlib import Path

import pytest

from mappa_core.config import ConfigError, load
from tasks.data import build
from tasks.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    build(tmp_path)
    return Run(load("lab"), tmp_path / "run", tmp_path, lambda *_: None)


def test_seconds_of_a_stage_within_another_count_once(run: Run) -> None:
    with run.timed("evaluate", 0), run.timed("start", 0):
        time.sleep(0.05)
    assert run.seconds["start"] >= 0.05
    assert run.seconds["evaluate"] < 0.02


def test_data_are_the_same_bytes_everywhere(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other"
    build(other)
    for file in sorted((tmp_path / "data" / "lab").iterdir()):
        assert file.read_bytes() == (other / "data" / "lab" / file.name).read_bytes()


def test_more_evaluation_problems_than_there_are_is_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match="lower it"):
        Run(load("lab", ["evaluate.problems=5000"]), run.dir.path, run.root, lambda *_: None)


def test_training_on_the_held_out_set_is_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match="share 200 problems"):
        Run(load("lab", ["data.train=lab/selection"]), run.dir.path, run.root, lambda *_: None)
