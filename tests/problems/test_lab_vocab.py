import string
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from mappa_core.chat import Chat
from mappa_core.problems import lab_demos, lab_vocab
from mappa_core.teams import team

LAB = team("lab")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tokenizer")
    lab_vocab.build(made, LAB)
    return made


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def test_every_text_of_the_team_comes_back(tokenizer: Tokenizer) -> None:
    for _, turns in lab_demos.demonstrations(0, 100, 0.8, LAB):
        for text in (t for turn in turns for t in turn):
            tokens = tokenizer.encode(text)
            assert tokenizer.decode(tokens.ids) == text
            assert lab_vocab.UNKNOWN not in tokens.tokens


@pytest.mark.parametrize(
    "text",
    [string.printable[:95], "\n\n a  b\n", " NameError: name 'x' is not defined. Did you mean: 'y'?", "```\n```", ""],
)
def test_any_printable_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_other_characters_are_shown_as_unknown(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\té€").ids) == "a" + 3 * lab_vocab.UNKNOWN


def test_digits_are_single(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("(12+345)*6").tokens == list("(12+345)*6")


def test_an_agent_can_not_spell_a_mark(tokenizer: Tokenizer) -> None:
    spelled = set(tokenizer.get_vocab())
    assert set(lab_vocab.MARKS) < spelled
    for token in spelled - {*lab_vocab.MARKS, lab_vocab.UNKNOWN}:
        assert "«" not in token
        assert "»" not in token


def test_a_conversation_by_hand(directory: Path, tokenizer: Tokenizer) -> None:
    chat = Chat(directory)
    prompt = chat.open("2 of")
    assert [tokenizer.id_to_token(t) for t in prompt] == ["«user»", "2", " ", "o", "f", "«end»", "«assistant»"]
    said = (*prompt, *tokenizer.encode("done").ids, *chat.eos_ids)
    later = chat.follow(said, "Tool: 7")
    assert later[: len(said)] == said
    tokens = [tokenizer.id_to_token(t) for t in later[len(said) :]]
    assert tokens == ["«user»", "Tool: ", "7", "«end»", "«assistant»"]


def test_transformers_reads_it_and_agrees(directory: Path, tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    (directory / "config.json").write_text('{"model_type": "llama"}')
    theirs = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
    messages = [{"role": "user", "content": "Tom has 12 pens.\nPlan:"}]
    tokens = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tuple(tokens) == Chat(directory).open("Tom has 12 pens.\nPlan:")
    assert theirs.decode(tokens, skip_special_tokens=True) == "Tom has 12 pens.\nPlan:"
    assert (theirs.eos_token, theirs.pad_token) == (lab_vocab.END, lab_vocab.PAD)


def test_building_twice_gives_the_same_bytes(directory: Path, tmp_path: Path) -> None:
    lab_vocab.build(tmp_path, LAB)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (directory / name).read_bytes()
