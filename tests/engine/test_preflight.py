"""What will not fit is said before anything is allocated, in one line that says what to do."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from mappa_core.config import ConfigError, ExperimentConfig, load
from mappa_core.engine.preflight import GIB, SMOLLM2, Machine, estimate, measure, preflight

MACHINE = Machine(memory=12 * GIB, disk=20 * GIB, shm=GIB, cpus=2, cpu_flags=frozenset({"avx", "avx2"}), cuda=False)
SETTINGS = {
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "vocab_size": 187,
    "max_position_embeddings": 512,
}


def _config(model: Path | None = None, **engine: Any) -> ExperimentConfig:
    chosen = {"type": "lab"} if model is None else {"type": "local", "path": str(model)}
    return ExperimentConfig.model_validate(
        {"name": "t", "steps": 1, "team": "lab", "model": chosen, "engine": engine, "collect": {"max_new_tokens": 64}}
    )


def _model(directory: Path, **settings: Any) -> Path:
    """A model directory with one weight of 187 x 96, whose bytes are a hole."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**SETTINGS, **settings}))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text("{}")
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    size = 187 * 96 * 4
    header = json.dumps({"w": {"dtype": "F32", "shape": [187, 96], "data_offsets": [0, size]}}).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    return directory


def _refused(base: Path | None, machine: Machine = MACHINE, **engine: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        preflight(_config(base, **engine), base, Path("runs"), 3, machine)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_model_that_fits_is_estimated_and_so_is_a_lab_model_before_it_is_built(tmp_path: Path) -> None:
    base = _model(tmp_path / "m")
    assert preflight(_config(base), base, tmp_path, 3, MACHINE).memory < 6 * GIB
    assert preflight(_config(), None, tmp_path, 3, MACHINE).memory < 6 * GIB


def test_the_packaged_model_is_estimated_before_it_is_converted(tmp_path: Path) -> None:
    config = load("smol")
    need = preflight(config, None, tmp_path, 3, MACHINE._replace(memory=24 * GIB))
    assert 12 * GIB < need.memory < 24 * GIB
    assert need == estimate(config, SMOLLM2, 3)
    with pytest.raises(ConfigError, match=r"lower engine\.ranks"):
        preflight(config, None, tmp_path, 3, MACHINE)


def test_a_local_model_needs_its_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set model\.path"):
        preflight(_config(tmp_path), None, tmp_path, 3, MACHINE)


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("config.json", "no config.json"),
        ("tokenizer.json", "no tokenizer"),
        ("chat_template.jinja", "no chat template"),
        ("model.safetensors", "weights must be safetensors"),
    ],
)
def test_a_directory_that_lacks_something_is_named_with_what_it_lacks(tmp_path: Path, lost: str, said: str) -> None:
    base = _model(tmp_path / "m")
    (base / lost).unlink()
    message = _refused(base)
    assert said in message
    assert str(base) in message


def test_a_template_inside_the_tokenizer_config_counts(tmp_path: Path) -> None:
    base = _model(tmp_path / "m")
    (base / "chat_template.jinja").unlink()
    (base / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    assert preflight(_config(base), base, tmp_path, 3, MACHINE)


def test_weights_that_are_cut_or_only_a_pointer_are_found(tmp_path: Path) -> None:
    base = _model(tmp_path / "m")
    weights = base / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(5000)
    assert "has 5000 bytes, its header says" in _refused(base)
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "a Git LFS pointer?" in _refused(base)
    (base / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-2.safetensors"}}')
    assert "no model-2.safetensors" in _refused(base)


def test_lengths_that_cannot_be(tmp_path: Path) -> None:
    base = _model(tmp_path / "m")
    assert "set engine.max_len=512" in _refused(base, max_len=513)
    assert "leaves no room for a prompt" in _refused(base, max_len=64)
    assert "holds no sequence of engine.max_len = 384: set engine.kv_cache_gib=0.01" in _refused(
        base, kv_cache_gib=0.0001
    )
    assert "head size 24" in _refused(_model(tmp_path / "odd", num_attention_heads=4))


def test_too_little_memory_disk_and_shared_memory(tmp_path: Path) -> None:
    base = _model(tmp_path / "m")
    memory = _refused(base, MACHINE._replace(memory=2 * GIB))
    assert "2.0 GiB are free" in memory
    assert "lower engine.ranks" in memory
    assert "give another --dir" in _refused(base, MACHINE._replace(disk=GIB // 4))
    assert "--shm-size=1g" in _refused(base, MACHINE._replace(shm=64 * 2**20))


def test_the_processor(tmp_path: Path) -> None:
    base = _model(tmp_path / "m")
    assert "needs AVX2" in _refused(base, MACHINE._replace(cpu_flags=frozenset({"sse4_2"})))
    assert "set engine.device=cpu" in _refused(base, device="cuda")


def test_the_estimate_is_the_documented_sum() -> None:
    """135 M parameters in bfloat16, 2 ranks, 3 policies: by hand, in bytes."""
    from mappa_core.engine.preflight import RANK_GIB, SAMPLER_GIB, Shape

    n = 135_000_000
    shape = Shape(n, hidden=576, layers=30, kv_heads=3, head_size=64, vocabulary=49152, max_len=8192)
    need = estimate(_config(dtype="bfloat16", pack_tokens=1000, kv_cache_gib=1.0), shape, 3)
    assert need.sampler == int((SAMPLER_GIB + 1.0) * GIB) + 2 * 2 * n
    rank = int(RANK_GIB * GIB) + 2 * n + 1000 * 576 * 30 * 34 * 2 + 1000 * 49152 * 4 * 3
    assert need.trainer == 2 * rank + 3 * 18 * n + 2 * n
    assert need.memory == need.sampler + need.trainer + need.rest
    assert need.disk == 3 * n * 16 * 2 + GIB // 2


def test_this_machine_is_measured_quickly_even_where_the_run_directory_is_not_yet(tmp_path: Path) -> None:
    base = _model(tmp_path / "m")
    start = time.process_time()
    machine = measure(tmp_path / "not" / "yet")
    assert machine.memory > 0
    assert machine.disk > 0
    assert machine.cpus >= 1
    preflight(_config(base), base, tmp_path, 3, MACHINE)
    assert time.process_time() - start < 0.5
