"""The lab's tokenizer: whole words of the lab's texts, single characters for everything else.

Digits stay single, so that a tiny model copies numbers digit by digit. All printable ASCII and the newline are in the
vocabulary and text comes back exactly as it went in; any other character becomes <unk>, which is shown, not dropped.
The marks of a turn hold characters outside the vocabulary: no agent can spell one and so forge a turn of another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from mappa_core.config import LabModel
from mappa_core.problems import lab, lab_demos
from mappa_core.types import Team

PAD, USER, ASSISTANT, END, UNKNOWN = "«pad»", "«user»", "«assistant»", "«end»", "<unk>"
MARKS = (PAD, USER, ASSISTANT, END)
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
PIECES = r"```python\nprint\(|\n```|\\boxed\{|[\n ]?[A-Za-z]+[:,.?]? ?|[^A-Za-z]"
"""A word takes the spaces and the mark beside it along; every other character stands alone."""
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'user' %}" + USER + "{% elif m['role'] == 'assistant' %}" + ASSISTANT + "{% else %}"
    "{{ raise_exception('the lab template knows user and assistant only') }}{% endif %}"
    "{{ m['content'] }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)


def build(directory: Path, team: Team) -> None:
    """Writes the tokenizer of `team` into `directory` (made if need be): what transformers and vLLM load offline."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer(words(texts(team))).save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": LabModel.MAX_LEN,
        "clean_up_tokenization_spaces": False,
        "pad_token": PAD,
        "eos_token": END,
        "chat_template": TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def texts(team: Team) -> list[str]:
    """The texts whose words get a symbol of their own: problems, prompts, and what the team says."""
    prompts = [re.sub(r"\{[a-z.]+\}", "", p) for role in team.roles for p in (role.prompt, role.follow_up)]
    return [*lab.wording(), *prompts, *lab_demos.phrases()]


def words(said: Iterable[str]) -> list[str]:
    """The pieces of more than one character in the texts, sorted, each once."""
    return sorted({piece for text in said for piece in re.findall(PIECES, text) if len(piece) > 1})


def tokenizer(vocabulary: list[str]) -> Tokenizer:
    """A tokenizer of marks, characters and the given words. Ids: marks, <unk>, characters, words."""
    ids = {symbol: i for i, symbol in enumerate((*MARKS, UNKNOWN, *CHARACTERS, *vocabulary))}
    made = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token=UNKNOWN, ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in MARKS])
    return made
