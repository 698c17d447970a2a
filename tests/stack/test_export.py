"""An exported role is a plain Hugging Face directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.export import export
from mappa_core import load_run
from mappa_core.config import ConfigError
from mappa_core.engine import weights

pytestmark = pytest.mark.stack
Mappa = Callable[..., "subprocess.CompletedProcess[str]"]

SPEAKS = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
path, problem = sys.argv[1:]
tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path)
messages = [{"role": "user", "content": problem}]
prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
made = model.generate(**prompt, max_new_tokens=32, do_sample=False)
length = prompt["input_ids"].shape[1]
print(prompt["input_ids"][0].tolist())
print(tokenizer.decode(made[0][length:], skip_special_tokens=True))
"""


def test_plain_transformers_load_what_was_exported_and_it_speaks(small_run: Path, mappa: Mappa, tmp_path: Path) -> None:
    done = mappa("export", "runs/small", "--role", "solver", "--to", str(tmp_path / "models" / "solver"))
    assert done.returncode == 0, done.stderr
    made = Path(done.stdout.strip())
    assert weights.digest(made) == load_run(small_run).summary()["policy_digests"]["solver"]
    assert all(file.stat().st_nlink == 1 for file in made.iterdir()), "copies, so that the run can't be harmed"
    assert not list(made.glob("*.pt")), "no trainer state"

    action = load_run(small_run).step(0).episodes[0].actions[0]
    problem = load_run(small_run).step(0).episodes[0].problem.prompt
    command = [sys.executable, "-c", SPEAKS, str(made), f"{problem}\nPlan:"]
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    told = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stderr
    prompt, said = told.stdout.strip().splitlines()[-2:]
    assert prompt == str(list(action.prompt_tokens)), "the template and tokenizer are those it was trained with"
    assert any(figure in said for figure in "0123456789"), said


def test_what_can_not_be_exported_is_one_line(small_run: Path, mappa: Mappa, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--role 'critic': .* has coder, solver, verifier"):
        export(small_run, "critic", tmp_path / "out")
    (tmp_path / "taken").mkdir()
    with pytest.raises(ConfigError, match="exists: give another --to"):
        export(small_run, "solver", tmp_path / "taken")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.json").write_bytes((small_run / "config.json").read_bytes())
    with pytest.raises(ConfigError, match="the run has not ended"):
        export(unfinished, "solver", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    done = mappa("export", "runs/nope", "--role", "solver")
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)


def test_weights_that_are_not_the_runs_are_refused(small_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    (copy / "policies" / "coder").mkdir(parents=True)
    for name in ("config.json", "summary.json"):
        (copy / name).write_bytes((small_run / name).read_bytes())
    for file in (small_run / "policies" / "coder").iterdir():
        (copy / "policies" / "coder" / file.name).write_bytes(file.read_bytes())
    flipped = bytearray((copy / "policies/coder/model.safetensors").read_bytes())
    flipped[-1] ^= 1
    (copy / "policies/coder/model.safetensors").write_bytes(flipped)
    with pytest.raises(ConfigError, match="remove it and resume"):
        export(copy, "coder", tmp_path / "out")
    assert not (tmp_path / "out").exists()
