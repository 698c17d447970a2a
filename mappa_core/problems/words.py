"""English word problems of two or three operations, from a seed: for real language models, graded as mathematics.

Sixteen stories in three wordings each, in words.toml. As in the lab, the split of a problem follows from its numbers
alone, so two problems of different splits never share their numbers, whatever their wording; every number is written in
figures, and the answer is a positive whole number. Refused: more problems of a split than it has.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import string
import tomllib
from collections.abc import Iterable, Iterator
from importlib import resources
from typing import NamedTuple

from mappa_core import arithmetic
from mappa_core.problems.lab import SPLITS, Rows, Split, Splits, split_of
from mappa_core.types import Key, Problem

LOWEST, HIGHEST = 2, 20
FEWEST, MOST = 40, 200
"""Of a capital letter's number."""
LARGEST = 500
"""No answer is larger."""

NAMES = (
    *("Anna", "Ben", "Carla", "David", "Elena", "Felix", "Grace", "Henry", "Iris", "Jack", "Karen", "Liam"),
    *("Maria", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tara", "Victor"),
)
THINGS = (
    *("apples", "pencils", "marbles", "stickers", "cookies", "books", "shells", "candles", "buttons", "oranges"),
    *("cards", "stamps", "muffins", "balloons", "plates", "flowers"),
)


class Story(NamedTuple):
    """A kind of problem. In its wordings and its plan a, b, c, d in braces are numbers, A is a large one; N and M are
    names, T and U things."""

    name: str
    plan: str
    wordings: list[str]
    between: str = "1"
    """What is left in the middle of the story: positive too."""


def _stories() -> tuple[Story, ...]:
    text = (resources.files("mappa_core.problems") / "words.toml").read_text()
    return tuple(Story(**entry) for entry in tomllib.loads(text)["stories"])


STORIES = _stories()


def generate(seed: int, train: int = 1024, selection: int = 200, report: int = 400) -> Splits:
    """The data set: so many problems in each split, all different, the same for the same `seed`."""
    return Splits(*(rows(seed, split, n) for split, n in zip(SPLITS, (train, selection, report), strict=True)))


def rows(seed: int, split: Split, n: int) -> Rows:
    """`n` different problems of `split` and their keys; ValueError where the split has not that many."""
    return first_different(itertools.islice(problems(seed, split), 20 * n + 100), split, n)


def first_different(made: Iterable[tuple[Problem, Key]], split: Split, n: int) -> Rows:
    """The first `n` problems of `made` with different texts; ValueError where there are fewer."""
    kept: dict[str, tuple[Problem, Key]] = {}
    for problem, key in made:
        if len(kept) == n:
            break
        kept.setdefault(problem.prompt, (problem, key))
    if len(kept) < n:
        raise ValueError(f"words/{split} has no {n} different problems; ask for at most {len(kept)}")
    return Rows(tuple(p for p, _ in kept.values()), tuple(k for _, k in kept.values()))


def problems(seed: int, split: Split) -> Iterator[tuple[Problem, Key]]:
    """Problems of `split` without end, every story as often; a text may come again."""
    rng = random.Random(f"words/{seed}/{split}")
    while True:
        for story in STORIES:
            yield _draw(story, split, rng)


def _draw(story: Story, split: Split, rng: random.Random) -> tuple[Problem, Key]:
    """One problem of `story` in `split`: its numbers are drawn until they fit."""
    letters = [name for _, name, _, _ in string.Formatter().parse(story.plan) if name]
    while True:
        drawn = {x: rng.randint(FEWEST, MOST) if x.isupper() else rng.randint(LOWEST, HIGHEST) for x in letters}
        if split_of(list(drawn.values())) == split and _natural(story, drawn):
            break
    name, other = rng.sample(NAMES, 2)
    thing, second = rng.sample(THINGS, 2)
    prompt = rng.choice(story.wordings).format(N=name, M=other, T=thing, U=second, **drawn)
    identity = "words-" + hashlib.blake2b(prompt.encode(), digest_size=8).hexdigest()
    plan = story.plan.format(**drawn)
    return (
        Problem(id=identity, kind="math", prompt=prompt, stratum=story.name),
        Key(problem=identity, answer=str(arithmetic.value(plan)), plan=plan),
    )


def _natural(story: Story, drawn: dict[str, int]) -> bool:
    """A whole number of things, and nobody gives away more than there is."""
    answer, between = (arithmetic.value(plan.format(**drawn)) for plan in (story.plan, story.between))
    assert answer is not None
    assert between is not None
    return between > 0 and answer.denominator == 1 and 1 < answer <= LARGEST
