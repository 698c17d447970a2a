"""Near-duplicates among problems: a similar statement *and* the same numbers, wherever a set came from.

Figures' source, mark-up, spacing, order of sentences, LaTeX spelling and spelled-out numbers don't matter; two problems
of one template with other numbers are different problems. Renamed numbers ("half", "a dozen") and translations are not
found.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from mappa_core.types import Problem

THRESHOLD = 0.75
"""Similarity from which two problems with the same numbers are one. On AIME 1983-2025 and AMC, different problems reach
0.72 and edited copies have 0.96 or more; the hand-written paraphrases of the tests have 0.77 or more."""
FEW = 6
"""Fewer telling words are in many a longer statement by chance."""

_FIGURES = re.compile(
    r"\[asy\].*?(?:\[/asy\]|\Z)|\\begin\{(tikzpicture|asy)\}.*?\\end\{\1\}|!\[[^\]]*\]\([^)]*\)|<img\b[^>]*>"
    r"|\\includegraphics(?:\[[^\]]*\])?\{[^}]*\}|https?://\S+",
    re.DOTALL | re.IGNORECASE,
)
_THOUSANDS = re.compile(r"(?<![\d,])(\d{1,3})((?:(?:,|\{,\}|\\,|\\!)\d{3})+)(?!\d)")
_SHORT_FRACTION = re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)")
_FRACTION = re.compile(r"\\[dt]?frac(?![a-z])")
_TIMES = re.compile(r"\\(?:cdot|times)(?![a-z])|[×·]")
_TOKENS = re.compile(r"\d+(?:\.\d+)?|[\u3040-\u9fff]|[^\W\d_]+|[+*/=<>^]")

_ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_WORTH = {word: i for i, word in enumerate(_ONES + _TEENS)} | {word: 10 * i for i, word in enumerate(_TENS, start=2)}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000}
_SMALL = rf"(?:(?:{'|'.join(_TENS)})(?:[\s-]+(?:{'|'.join(_ONES[1:])}))?|{'|'.join(_TEENS + _ONES)})\b"
_SCALE = rf"(?:{'|'.join(_SCALES)})\b"
_SPELLED = re.compile(rf"\b(?:{_SMALL}|a(?=\s+{_SCALE}))(?:[\s-]+{_SCALE}(?:(?:\s+and)?[\s-]+{_SMALL})?)*")

_MARKUP = """
    left right big bigg text textbf textit mathrm mathbf displaystyle quad qquad begin end dots ldots cdots array hline
    item itemize enumerate"""
_COMMON = """
    a an and are as at be been being by can could each for from has have had if in into is it its let may of on or such
    than that the their then there these they this those to was were what when where which who will with would so not
    no all any both does do find determine compute calculate value given suppose number how many much answer express
    written form positive integer integers real m n p q relatively prime"""
_SILENT = frozenset(f"{_MARKUP} {_COMMON}".split())
"""Words that any two problems share: they tell nothing."""


class Statement(NamedTuple):
    """What is compared of a prompt."""

    numbers: tuple[str, ...]
    """All but 1, sorted: `one` is too often a pronoun, and 1 too often left unwritten."""
    words: frozenset[str]
    """Each telling word or operator; from its second occurrence on, with the occurrence's number."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two rows that are one problem."""

    a: str
    """Id of a problem of the first set."""
    b: str
    similarity: float
    """0..1"""


def between(a: Sequence[Problem], b: Sequence[Problem]) -> list[Pair]:
    """The near-duplicates of `a` in `b`, most similar first; seconds for 1,000 x 1,000."""
    rows = [*a, *b]
    groups = _by_numbers(statements := [statement(p.prompt) for p in rows])
    split = len(a)
    candidates = ((i, j) for group in groups for i in group if i < split for j in group if j >= split)
    return _alike(rows, statements, candidates)


def within(problems: Sequence[Problem]) -> list[Pair]:
    """The near-duplicates inside one set, each pair once, most similar first."""
    groups = _by_numbers(statements := [statement(p.prompt) for p in problems])
    return _alike(problems, statements, (pair for group in groups for pair in itertools.combinations(group, 2)))


def statement(prompt: str) -> Statement:
    """The numbers and the telling words of a prompt, figures' source left out."""
    text = unicodedata.normalize("NFKC", _FIGURES.sub(" ", prompt)).casefold()
    text = _THOUSANDS.sub(lambda m: m[1] + re.sub(r"\D", "", m[2]), text)
    text = _FRACTION.sub(" / ", _SHORT_FRACTION.sub(r" \1 / \2 ", text))
    text = _SPELLED.sub(lambda m: f" {_worth(m[0])} ", _TIMES.sub(" * ", text))
    tokens = _TOKENS.findall(text)
    numbers = sorted(_plain(t) for t in tokens if t[0].isdecimal())
    return Statement(tuple(n for n in numbers if n != "1"), _counted(t for t in tokens if not t[0].isdecimal()))


def _worth(spelled: str) -> int:
    """The value of a spelled-out number, "two hundred and five"."""
    total = current = 0
    for word in re.findall("[a-z]+", spelled):
        if word == "hundred":
            current = max(current, 1) * 100
        elif word in _SCALES:
            total, current = total + max(current, 1) * _SCALES[word], 0
        else:
            current += _WORTH.get(word, 0)
    return total + current


def _plain(number: str) -> str:
    """070, 70.0 and 70 are one."""
    return f"{Decimal(number).normalize():f}"


def _counted(tokens: Iterable[str]) -> frozenset[str]:
    """The multiset of the tokens that tell something, as a set: intersections of sets are fast."""
    seen: Counter[str] = Counter()
    words: set[str] = set()
    for token in tokens:
        if token not in _SILENT:
            words.add(f"{token} {seen[token]}" if seen[token] else token)
            seen[token] += 1
    return frozenset(words)


def _by_numbers(statements: Sequence[Statement]) -> list[list[int]]:
    """The places of the statements with the same numbers, in order."""
    groups: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for at, found in enumerate(statements):
        groups[found.numbers].append(at)
    return list(groups.values())


def _alike(
    rows: Sequence[Problem], statements: Sequence[Statement], candidates: Iterable[tuple[int, int]]
) -> list[Pair]:
    """The pairs of rows whose statements, of the same numbers, are similar."""
    bits: dict[str, int] = {}  # a word is a bit: a million intersections take a second
    masks = [sum(1 << bits.setdefault(word, len(bits)) for word in found.words) for found in statements]
    sizes = [len(found.words) for found in statements]
    found = (
        Pair(rows[i].id, rows[j].id, s)
        for i, j in candidates
        if (s := similarity((masks[i] & masks[j]).bit_count(), sizes[i], sizes[j])) >= THRESHOLD
    )
    return sorted(found, key=lambda pair: (-pair.similarity, pair.b, pair.a))


def similarity(common: int, one: int, other: int) -> float:
    """Containment: the share of the shorter statement's words that both have, 0..1; of the longer's if they are few."""
    if not one and not other:
        return 1.0
    shorter, longer = (one, other) if one < other else (other, one)
    return common / (shorter if shorter >= FEW else longer)
