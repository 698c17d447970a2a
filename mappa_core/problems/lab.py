"""The lab's word problems: ten templates, numbers 2 to 20, two or three operations, from a seed.

The split of a problem follows from its numbers alone, so two problems of different splits never share their numbers,
whatever their wording: no near-duplicate can leak. Refused: more problems of a split than it has.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from mappa_core import arithmetic
from mappa_core.types import Key, Problem

Split = Literal["train", "selection", "report"]
SPLITS: tuple[Split, ...] = get_args(Split)
LOWEST, HIGHEST = 2, 20

NAMES = ("Ann", "Bob", "Eva", "Ida", "Jon", "Kim", "Lea", "Max", "Tom", "Zoe")
THINGS = ("cups", "pens", "nuts", "eggs", "keys", "hats", "toys", "figs", "maps", "rings")


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of problem. In `text` and `plan` lower-case letters in braces are numbers; N is a name, T and U things."""

    name: str
    text: str
    plan: str
    slip: str | None = None
    """The plan a weak solver writes instead; None: nothing about this template is hard."""


TEMPLATES = (
    Template("colours", "{N} buys {a} red and {b} blue {T} at {c} each. Cost?", "({a}+{b})*{c}", "{a}+{b}*{c}"),
    Template("boxes", "{a} boxes hold {b} {T} and {c} {U} each. Total?", "{a}*({b}+{c})", "{a}*{b}+{c}"),
    Template(
        "rest", "{N} has {a} {T}, drops {b} and sells the rest at {c} each. Cost?", "({a}-{b})*{c}", "{a}-{b}*{c}"
    ),
    Template("hours", "{N} works {a} hours and {b} more at {c} an hour. Pay?", "({a}+{b})*{c}"),
    Template("bags", "{N} has {a} bags of {b} {T} and {c} more. Total?", "{a}*{b}+{c}"),
    Template("buys", "{N} has {a} {T} and buys {b} bags of {c}. Total?", "{a}+{b}*{c}"),
    Template("gives", "{N} has {a} bags of {b} {T} and gives {c} away. Left?", "{a}*{b}-{c}", "{a}*{b}+{c}"),
    Template("loses", "{N} has {a} {T}, finds {b} and loses {c}. Left?", "{a}+{b}-{c}", "{a}+{b}+{c}"),
    Template("gets", "{N} has {a} {T}, drops {b} and gets {c}. Total?", "{a}-{b}+{c}"),
    Template("pairs", "{N} has {a} bags of {b} {T} and {c} bags of {d} {U}. Total?", "{a}*{b}+{c}*{d}"),
)


class LabProblem(NamedTuple):
    """A problem, its Key, and the plan a weak solver writes (None where the template has no trap)."""

    problem: Problem
    key: Key
    slip: str | None


class Rows(NamedTuple):
    """A split: problems and, apart from them, their keys, in the same order."""

    problems: tuple[Problem, ...]
    keys: tuple[Key, ...]


class Splits(NamedTuple):
    train: Rows
    selection: Rows
    report: Rows


def generate(seed: int, train: int = 1024, selection: int = 200, report: int = 400) -> Splits:
    """The lab's data set: so many problems in each split, all different, the same for the same `seed`."""
    return Splits(*(rows(seed, split, n) for split, n in zip(SPLITS, (train, selection, report), strict=True)))


def rows(seed: int, split: Split, n: int) -> Rows:
    """`n` different problems of `split` and their keys; ValueError where the split has not that many."""
    return first_different(itertools.islice(problems(seed, split), 20 * n + 100), split, n)


def first_different(made: Iterable[LabProblem], split: Split, n: int) -> Rows:
    """The first `n` problems of `made` with different texts; ValueError where there are fewer."""
    kept: dict[str, LabProblem] = {}
    for one in made:
        if len(kept) == n:
            break
        kept.setdefault(one.problem.prompt, one)
    if len(kept) < n:
        raise ValueError(f"lab/{split} has no {n} different problems; ask for at most {len(kept)}")
    return Rows(tuple(m.problem for m in kept.values()), tuple(m.key for m in kept.values()))


def problems(seed: int, split: Split) -> Iterator[LabProblem]:
    """Problems of `split` without end, every template as often; a text may come again."""
    rng = random.Random(f"lab/{seed}/{split}")
    while True:
        for template in TEMPLATES:
            yield _draw(template, split, rng)


def split_of(numbers: list[int]) -> Split:
    """The split that problems with these numbers belong to, in any order: 8 of 10 sets of numbers are for training."""
    text = ",".join(map(str, sorted(numbers)))
    bucket = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()) % 10
    return "selection" if bucket == 0 else "report" if bucket == 1 else "train"


def _draw(template: Template, split: Split, rng: random.Random) -> LabProblem:
    """One problem of `template` in `split`: its numbers are drawn until they fit."""
    letters = [letter for letter in "abcd" if f"{{{letter}}}" in template.text]
    while True:
        drawn = {letter: rng.randint(LOWEST, HIGHEST) for letter in letters}
        plan = template.plan.format(**drawn)
        answer = arithmetic.value(plan)
        assert answer is not None
        if answer > 0 and split_of(list(drawn.values())) == split and _natural(template, drawn["a"], drawn["b"]):
            break
    thing, other = rng.sample(THINGS, 2)
    prompt = template.text.format(N=rng.choice(NAMES), T=thing, U=other, **drawn)
    name = "lab-" + hashlib.blake2b(prompt.encode(), digest_size=8).hexdigest()
    problem = Problem(id=name, kind="lab", prompt=prompt, stratum=template.name)
    key = Key(problem=name, answer=str(answer), plan=plan)
    return LabProblem(problem, key, template.slip.format(**drawn) if template.slip else None)


def _natural(template: Template, a: int, b: int) -> bool:
    """Nobody drops more than there is."""
    return "drops" not in template.text or a > b


def wording() -> list[str]:
    """Every template with every name and thing once, numbers left out: the words that problems are made of."""
    blank = dict.fromkeys("abcd", "")
    size = range(max(len(NAMES), len(THINGS)))
    return [
        t.text.format(N=NAMES[i % len(NAMES)], T=THINGS[i % len(THINGS)], U=THINGS[i % len(THINGS)], **blank)
        for t in TEMPLATES
        for i in size
    ]
