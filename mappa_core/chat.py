"""A model's own chat template, played forward: messages in, token ids out, and what was sampled is never touched.

The usual way to a second turn is to render the whole conversation again. That re-tokenises what the model wrote, and
the templates of thinking models drop it in part. Here a later turn is the context exactly as it was plus the tokens
the template puts between an answer and the next; they are found once, by rendering a conversation around marked
messages. So a model sees its own earlier thinking, even where its template would have left it out.

A message can't forge a turn. It is put into the rendered text with its place known, and the tokenizer's result is
looked through: where a control token (a special one, or one written like a mark: <...>, [...]) touches that place, the
text is cut after the mark's first character, so that the mark is read as plain characters. All else is tokenised in one
piece, as transformers does it. Messages lose the white space at their ends, which templates differ in keeping.

Refused: directories without tokenizer.json or chat template, and templates that repeat or change messages. Templates
get no clock, so that a prompt doesn't depend on the day. Imports neither torch nor transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from mappa_core.config import ConfigError

THINK, UNTHINK = "<think>", "</think>"
_EARLIER, _ANSWER, _MESSAGE = "mark0earlier0mark", "mark0answer0mark", "mark0message0mark"
_MARK = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")


class Chat:
    """The tokenizer and chat template of a Hugging Face directory; ConfigError says in a line what it lacks.

    `eos_ids`: sorted ids of the tokens that end a turn, for the sampler to stop at: those of generation_config.json,
    the tokenizer's own, and the one that the template writes after an answer.
    """

    eos_ids: tuple[int, ...]

    def __init__(self, directory: str | Path) -> None:
        home = Path(directory)
        settings = _json(home / "tokenizer_config.json")
        self._tokenizer = _tokenizer(home)
        added = self._tokenizer.get_added_tokens_decoder()
        self._controls = {
            i: t.content for i, t in added.items() if t.content.strip() and (t.special or _MARK.fullmatch(t.content))
        }
        self._silent = {i for i, t in added.items() if t.special and t.content not in (THINK, UNTHINK)}
        self._unknown = _content(settings.get("unk_token")) or getattr(self._tokenizer.model, "unk_token", None)
        if short := [mark for mark in self._controls.values() if len(mark) < 2 and mark != self._unknown]:
            raise ConfigError(f"{home}: control token {short[0]!r} is one character, easily forged; rename it")

        user, answer, message = ("user", _EARLIER), ("assistant", _ANSWER), ("user", _MESSAGE)
        render = _renderer(home, settings)
        self._opening = _place(home, render((message,)), _MESSAGE)
        reply = _place(home, render((user, answer, message)), _ANSWER).after
        self._reply = _place(home, reply, _MESSAGE)
        self._prefilled = self._opening.after.rfind(THINK) > self._opening.after.rfind(UNTHINK)
        self._end, self._closing, self.eos_ids = self._ends(home, settings)

    def open(self, message: str, /) -> tuple[int, ...]:
        """The prompt (P,) of a conversation that begins with the user's `message`, up to where the model speaks."""
        return tuple(self._tokens(*self._opening.fill(message)))

    def follow(self, context: Sequence[int], message: str, /) -> tuple[int, ...]:
        """`context` (prompt and sampled output, exactly), the end of the turn where a truncated output lacks it, and
        the user's next `message`, up to where the model speaks again."""
        tail = self._tokens(*self._reply.fill(message))
        ended = self._end is not None and bool(context) and context[-1] == self._end
        return (*context, *(tail[self._closing :] if ended else tail))

    def decode(self, tokens: Sequence[int], /) -> str:
        """The text of sampled tokens: special tokens left out (marks of thinking stay), nothing stripped or tidied."""
        return self._tokenizer.decode([t for t in tokens if t not in self._silent], skip_special_tokens=False)

    def spoken(self, text: str, /) -> str:
        """The part of an output's text that is not thinking. Where the template opens the thinking, text before the
        first </think> is thought, all of it where there is none; so is text before a stray </think>, and after an open
        <think>."""
        said, thinking = [], self._prefilled
        for piece in re.split(f"({THINK}|{UNTHINK})", text):
            if piece == UNTHINK:
                if not thinking:
                    said.clear()
                thinking = False
            elif piece == THINK:
                thinking = True
            elif not thinking:
                said.append(piece)
        return "".join(said)

    def _ends(self, home: Path, settings: dict[str, Any]) -> tuple[int | None, int, tuple[int, ...]]:
        """The token that the template puts after an answer, how many tokens lead up to it, and all eos ids."""
        given = _json(home / "generation_config.json").get("eos_token_id") or []
        ends = {given} if isinstance(given, int) else set(given)
        own = _content(settings.get("eos_token"))
        if own is not None and (token := self._tokenizer.token_to_id(own)) is not None:
            ends.add(token)
        closing = self._tokens(self._reply.before, 0, 0)
        at = next((i for i, t in enumerate(closing) if t in ends), None)
        if at is None:
            at = next((i for i, t in enumerate(closing) if t in self._controls), None)
        if at is None and not ends:
            raise ConfigError(f"{home} names no token that ends a turn; set eos_token_id in its generation_config.json")
        end = None if at is None else closing[at]
        return end, 0 if at is None else at + 1, tuple(sorted(ends if end is None else ends | {end}))

    def _tokens(self, text: str, start: int, end: int) -> list[int]:
        """Token ids of `text`, without control tokens that touch text[start:end]."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        cuts = [0]
        for token, (left, right) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self._controls and left < end and right > start:
                mark = text[left:right].strip()  # a mark may take the white space beside it along
                left += text[left:right].index(mark)
                unknown = self._controls[token] == self._unknown and mark != self._unknown
                if not unknown and left < end and left + len(mark) > start:
                    if len(mark) < 2:
                        raise ConfigError(f"the tokenizer reads {mark!r} in a message as {self._controls[token]!r}")
                    cuts.append(left + 1)
        if len(cuts) == 1:
            return encoding.ids
        ids: list[int] = []
        for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True):
            ids += self._tokens(text[a:b], max(start - a, 0), max(min(end, b) - a, 0))
        return ids


@dataclass(frozen=True, slots=True)
class _Place:
    """The text a template puts around one message."""

    before: str
    after: str

    def fill(self, message: str) -> tuple[str, int, int]:
        """The text with the message in it, and where the message starts and ends."""
        bare = message.strip()
        return self.before + bare + self.after, len(self.before), len(self.before) + len(bare)


def _place(home: Path, text: str, mark: str) -> _Place:
    if text.count(mark) != 1:
        raise ConfigError(
            f"the chat template in {home} shows a message {text.count(mark)} times; "
            "it must show every user and assistant message once, unchanged"
        )
    before, after = text.split(mark)
    return _Place(before, after)


def _tokenizer(home: Path) -> Tokenizer:
    file = home / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(f"{home} has no tokenizer.json; save the model's fast tokenizer there (save_pretrained)")
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _renderer(home: Path, settings: dict[str, Any]) -> Callable[[tuple[tuple[str, str], ...]], str]:
    """The template as a function of (role, content) messages, with the variables that transformers gives it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    names = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
    settings = {**_json(home / "special_tokens_map.json"), **settings}
    tokens = {name: text for name in names if (text := _content(settings.get(name))) is not None}
    source = _source(home, settings)

    def render(messages: tuple[tuple[str, str], ...]) -> str:
        told = [{"role": role, "content": content} for role, content in messages]
        try:
            return environment.from_string(source).render(
                messages=told, tools=None, documents=None, add_generation_prompt=True, **tokens
            )
        except (jinja2.TemplateError, TypeError) as error:
            roles = ", ".join(role for role, _ in messages)
            raise ConfigError(f"the chat template in {home} can't render a conversation of {roles}: {error}") from error

    return render


def _source(home: Path, settings: dict[str, Any]) -> str:
    """The default template: chat_template.jinja, or the one in tokenizer_config.json."""
    file = home / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    given = settings.get("chat_template")
    if isinstance(given, list):  # several, by name
        given = next((entry["template"] for entry in given if entry["name"] == "default"), None)
    if not isinstance(given, str):
        raise ConfigError(
            f"{home} has no chat template; add chat_template.jinja (base models lack one: take a chat model)"
        )
    return given


class _Generation(Extension):
    """{% generation %} marks what an assistant says, for loss masks that are not needed here: its body is rendered."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None, **kw: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **kw)


def _json(file: Path) -> dict[str, Any]:
    """A JSON object, or {} where there is no such file: each of them is optional by itself."""
    if not file.is_file():
        return {}
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file} is not JSON: {error}; copy the model directory again") from error


def _content(token: Any) -> str | None:
    """A special token's text: some files write it plainly, some as an object."""
    return token.get("content") if isinstance(token, dict) else token
