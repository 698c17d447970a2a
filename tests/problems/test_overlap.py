"""Which rows are one problem: similar statement and the same numbers. Paraphrases are written by hand."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from mappa_core.problems import lab, overlap, words
from mappa_core.types import Problem


class Two(NamedTuple):
    first: str
    second: str


SPHERES = (
    "Three spheres with radii $11$, $13$, and $19$ are mutually externally tangent. A plane intersects the spheres in "
    "three congruent circles centered at $A$, $B$, and $C$, respectively, and the centers of the spheres all lie on "
    "the same side of this plane. Suppose that $AB^2 = 560$. Find $AC^2$."
)
LIST = (
    "A list of positive integers has the following properties: The sum of the items in the list is $30$. The unique "
    "mode of the list is $9$. The median of the list is a positive integer that does not appear in the list itself. "
    "Find the sum of the squares of all the items in the list."
)
SAME = {
    "paraphrased": Two(
        SPHERES,
        "Three mutually externally tangent spheres have radii 11, 13 and 19. Their centers lie on the same side of a "
        "plane, which meets them in three congruent circles with centers A, B and C. If AB^2 = 560, determine AC^2.",
    ),
    "spelled out": Two(
        LIST,
        "The items of a list of positive integers sum to thirty, its unique mode is nine, and its median is a positive "
        "integer not appearing in the list. What is the sum of the squares of the items?",
    ),
    "without a number": Two(
        "Each vertex of a regular octagon is independently colored either red or blue with equal probability. The "
        "probability that the octagon can then be rotated so that all of the blue vertices end up at positions where "
        "there were originally red vertices is $\\tfrac{m}{n}$, where $m$ and $n$ are relatively prime. What is $m+n$?",
        "The vertices of a regular octagon are each colored red or blue independently and with equal probability. Let "
        "m/n, in lowest terms, be the probability that some rotation of the octagon moves every blue vertex to a "
        "position that was originally red. Find m+n.",
    ),
    "in another order": Two(
        "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips "
        "did Natalia sell altogether in April and May?",
        "How many clips did Natalia sell altogether in April and May? In May she sold half as many clips as in April. "
        "In April she sold clips to forty-eight of her friends.",
    ),
    "in other LaTeX": Two(
        "The function $ f(x) = \\frac{(x - 18)(x - 72)(x - k)}{x} + \\frac12 $ is defined on $x > 1{,}000$.",
        "The function \\[f(x)=\\dfrac{(x-18)(x-72)(x-k)}{x}+\\tfrac{1}{2}\\] is defined on \\(x>1000\\).",
    ),
    "with an instruction before it": Two(
        "What is the sum of the roots of $x^2 - 7x + 12 = 0$?",
        "Solve the following problem step by step. Show your reasoning and put your final answer within \\boxed{}. "
        "What is the sum of the roots of $x^2 - 7x + 12 = 0$?",
    ),
    "with a figure's code": Two(
        "Rhombus $ABCD$ has sides of length $5$ and an angle of 120 degrees. Find its area.",
        "Rhombus $ABCD$ has sides of length $5$ and an angle of 120 degrees. Find its area.\n"
        "[asy] unitsize(0.3 inch); draw((0,0)--(3,1.75)); label(scale(7)*'A', (2,2)); [/asy]",
    ),
    "with an image": Two(
        "![figure](https://example.org/12/34.png) Rhombus $ABCD$ has sides of length $5$. Find its area.",
        "Rhombus $ABCD$ has sides of length $5$. Find its area. <img src='7.png' width='300'>",
    ),
    "bare arithmetic": Two("What is 12 \\times 7?", "Compute $12\\cdot 7$."),
}
DIFFERENT = {
    "other numbers": Two("Ann has 3 bags of 4 pens and 5 more. Total?", "Ann has 3 bags of 4 pens and 6 more. Total?"),
    "a number more": Two("Find the area of a square of side 4.", "Find the area of a square of side 4 and height 4."),
    "the same numbers, another problem": Two(
        "How many positive integers $N$ less than $1000$ are there such that the equation $x^{\\lfloor x\\rfloor} = N$ "
        "has a solution for $x$?",
        "Find the sum of all primes less than 1000 whose digits are increasing.",
    ),
    "no number, another problem": Two(
        "In equilateral $\\triangle ABC$ let points $D$ and $E$ trisect $\\overline{BC}$. Find $\\sin(\\angle DAE)$.",
        "In $\\triangle{ABC}$ medians $\\overline{AD}$ and $\\overline{BE}$ intersect at $G$. Find $\\cos(C)$ if $AGE$ "
        "is equilateral.",
    ),
    "few words of a longer one": Two("Find the sum of 3 and 5.", "Find the sum of the squares of 3 and 5."),
    "another operator": Two("What is 12 + 7?", "What is 12 * 7?"),
    "in another script": Two("求 3 和 5 的和。", "求 3 和 5 的最小公倍数。"),
}


def problems(*prompts: str) -> list[Problem]:
    return [Problem(str(i), "math", prompt) for i, prompt in enumerate(prompts)]


@pytest.mark.parametrize("case", SAME)
def test_one_problem_is_found_in_another_form(case: str) -> None:
    first, second = SAME[case]
    (pair,) = overlap.between(problems(first), problems("Something else with 99.", second))
    assert (pair.a, pair.b) == ("0", "1")
    assert overlap.THRESHOLD <= pair.similarity <= 1


@pytest.mark.parametrize("case", DIFFERENT)
def test_different_problems_are_not_one(case: str) -> None:
    first, second = DIFFERENT[case]
    assert overlap.between(problems(first), problems(second)) == []


@pytest.mark.parametrize(
    ("prompt", "numbers"),
    [
        ("twenty-one, two hundred and five, a thousand", ("1000", "205", "21")),
        ("two three-digit numbers", ("2", "3")),
        ("two thousand twenty five and five million", ("2025", "5000000")),
        ("seventeen someone often tension", ("17",)),
        ("1,000 and 1{,}234 and $9,5,16$", ("1000", "1234", "16", "5", "9")),
        ("$\\frac13 + \\tfrac1{20} + \\frac{n}4$", ("20", "3", "4")),
        ("070 and 70.0 and 0.50", ("0.5", "70", "70")),
        ("one of the 1 unit squares", ()),
        ("$x²$ [asy] draw((7,8)); ", ("2",)),
    ],
)
def test_numbers_however_they_are_written(prompt: str, numbers: tuple[str, ...]) -> None:
    assert overlap.statement(prompt).numbers == numbers


def test_a_pair_inside_a_set_is_found_once() -> None:
    rows = problems(SPHERES, LIST, SAME["spelled out"][1])
    assert [(p.a, p.b) for p in overlap.within(rows)] == [("1", "2")]


def test_splits_of_templates_do_not_overlap() -> None:
    """Lab and word problems of two splits have the same templates and other numbers."""
    for made in (lab.generate(1, 300, 100, 100), words.generate(1, 300, 100, 100)):
        for a, b in ((made.train, made.selection), (made.train, made.report), (made.selection, made.report)):
            assert overlap.between(a.problems, b.problems) == []


def test_a_thousand_by_a_thousand_without_any_number_takes_seconds() -> None:
    """The worst case: numbers tell nothing apart, so every pair of statements is compared."""
    rng_words = [f"word{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(400)]
    prompts = [" ".join(rng_words[(7 * i + j * j) % 400] for j in range(60)) for i in range(1000)]
    begun = time.process_time()
    overlap.between(problems(*prompts), problems(*prompts))
    assert time.process_time() - begun < 10


@pytest.mark.parametrize(
    ("a", "b", "rows"),
    [
        ("AIME_1983_2024", "aime_eval_32", 18),
        ("aime_2025", "aime_eval_32", 8),
        ("amc", "amc_eval_32", 32),
        ("AIME_1983_2024", "aime_2025", 0),
        ("AIME_1983_2024", "amc_eval_32", 0),
        ("AIME_1983_2024", "amc", 0),
    ],
)
def test_the_public_files_share_so_many_rows(data_dir: Path, a: str, b: str, rows: int) -> None:
    found = overlap.between(_prompts(data_dir / f"{a}.json"), _prompts(data_dir / f"{b}.json"))
    assert len(found) == len({p.b for p in found}) == rows


def _prompts(file: Path) -> list[Problem]:
    return problems(*(row["prompt"] for row in json.loads(file.read_text())))
