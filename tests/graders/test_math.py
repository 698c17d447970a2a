"""Right verdicts on pairs of answers, and the ways in which grading must not fail."""

from __future__ import annotations

import threading
import time

import pytest

from mappa_core.graders import outcome
from mappa_core.graders.math import boxed, grade, integer, normalised
from mappa_core.types import Action, Episode, Execution, Key, Problem

PAIRS = r"""
70            | 70            | yes
070           | 70            | yes
70            | 070           | yes
+70           | 70            | yes
70.0          | 70            | yes
70.           | 70            | yes
$70$          | 70            | yes
\(70\)        | 70            | yes
1,234         | 1234          | yes
1{,}234       | 1234          | yes
336           | 336^\circ     | yes
336^{\circ}   | 336           | yes
50\%          | 50            | yes
50\%          | 0.5           | no
\$5           | 5             | yes
-3            | 3             | no
71            | 70            | no
7             | 70            | no
12345678901234567 | 12345678901234568 | no
2^{100}       | 1267650600228229401496703205376 | yes
\boxed{70}    | 70            | yes
The answer is \boxed{7}, no, \boxed{70}. | 70 | yes
\boxed{70} and \boxed{7} | 70 | no
1/2           | \frac{1}{2}   | yes
0.5           | \frac12       | yes
\dfrac{2}{4}  | \frac{1}{2}   | yes
-\frac{1}{2}  | \frac{-1}{2}  | yes
0.333         | \frac{1}{3}   | no
3\frac{1}{2}  | \frac{7}{2}   | yes
\frac{140}{2} | 70            | yes
\sqrt{8}      | 2\sqrt{2}     | yes
2\sqrt2       | 2\sqrt{2}     | yes
2*sqrt(3)     | 2\sqrt{3}     | yes
\frac{\sqrt{2}}{2} | \frac{1}{\sqrt{2}} | yes
\sqrt{2}      | \sqrt{3}      | no
\pi           | 3.14          | no
pi/4          | \frac{\pi}{4} | yes
\sin(\pi/6)   | \frac12       | yes
\log_2 8      | 3             | yes
\binom{5}{2}  | 10            | yes
5!            | 120           | yes
100!+1        | 100!          | no
10^3          | 1000          | yes
1.5\times 10^3 | 1500         | yes
x=5           | 5             | yes
5             | x=5           | yes
y = 5         | x = 5         | no
1+x           | x+1           | yes
(x+1)^2       | x^2+2x+1      | yes
y+1           | x+1           | no
5x            | 5             | no
1+2i          | 2i+1          | yes
(1,2)         | (1,2)         | yes
(2,1)         | (1,2)         | no
2,1           | 1,2           | yes
\{2,1\}       | \{1,2\}       | yes
\{1,2\}       | \{1,2,3\}     | no
\boxed{\{1,2\}} | \{1,2\}     | yes
[0,1)         | [0,1]         | no
[1,2]\cup[3,4] | [3,4]\cup[1,2] | yes
(-\infty,3)   | (-\infty,3)   | yes
-\infty       | \infty        | no
\pm 2         | \{-2,2\}      | yes
5<x           | x>5           | yes
x \ge 5       | x > 5         | no
\begin{pmatrix}1\\2\end{pmatrix} | \begin{pmatrix}2\\1\end{pmatrix} | no
\begin{pmatrix}1\\2\end{pmatrix} | \begin{pmatrix}1\\2\end{pmatrix} | yes
5\text{ cm}   | 5             | yes
\text{odd}    | \text{even}   | no
\text{even}   | \text{even}   | yes
\frac{1}{0}   | 5             | no
no idea       | 5             | no
""".strip().splitlines()


@pytest.mark.parametrize("pair", PAIRS)
def test_verdict(pair: str) -> None:
    answer, reference, verdict = (part.strip() for part in pair.rsplit("|", 2))
    found = grade(answer, reference, 60.0)
    assert found.success == (verdict == "yes"), found


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", "empty"),
        ("$$", "empty"),
        (r"\boxed{70", "no balanced"),
        (r"\boxed{}", "empty"),
        (r"\frac{", "can't be read"),
        ("9" * 3000, "characters long"),
        ("(" * 60, "can't be read"),
    ],
)
def test_an_unreadable_answer_is_wrong_and_says_why(answer: str, why: str) -> None:
    found = grade(answer, "70", 60.0)
    assert not found.success
    assert found.value is None
    assert why in found.why


@pytest.mark.parametrize("reference", ["", r"\frac{", "$$"])
def test_an_unreadable_reference_is_an_error_of_one_line(reference: str) -> None:
    with pytest.raises(ValueError, match="reference") as caught:
        grade("5x", reference, 60.0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("answer", ["5^{5^{5^{5^{5}}}}", "9^{9^{9^{9}}}", "(10^{10})!"])
def test_an_answer_that_hangs_is_wrong_in_time_and_the_next_is_graded(answer: str) -> None:
    grade("1/2", "0.5", 60.0)
    start = time.monotonic()
    found = grade(answer, "7", 1.0)
    assert not found.success
    assert time.monotonic() - start < 5
    assert grade(r"\frac{14}{2}", "7", 60.0).success


def test_threads_get_right_verdicts() -> None:
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(grade(f"{n}/2", f"\\frac{{{2 * n}}}{{4}}", 60.0).success))
        for n in range(1, 9)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 8


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"so \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{\left\{1\right.}", r"\left\{1\right."),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed {3}", "3"),
        ("boxed{3}", None),
        (r"\boxed{", None),
        ("", None),
    ],
)
def test_last_balanced_box(text: str, box: str | None) -> None:
    assert boxed(text) == box


def test_what_is_an_integer() -> None:
    assert [integer(t) for t in ("070", "1,234", "12,34", "7 0", "1.5", "1e3", "\u0667", "-0", "7.00")] == [
        *(70, 1234, None, None, None, None, None, 0, 7)
    ]


def test_what_is_overlooked() -> None:
    assert [normalised(t) for t in (" $ 5 $ ", r"\[x\].", r"30^\circ.", "spin", "2 pi", "5 %")] == [
        *("5", "x", "30", "spin", r"2 \pi", "5")
    ]


def _action(role: str, turn: int, text: str, execution: Execution | None = None) -> Action:
    return Action(f"p#0/{role}/{turn}", role, turn, 0, (1,), (2,), (-0.1,), text, "stop", "abc", execution)


def _episode(*actions: Action) -> Episode:
    return Episode("p#0", Problem("p", "math", "What is 7 times 10?"), 0, actions)


KEY = Key("p", "70")


def test_outcome_is_the_verifiers_last_box() -> None:
    ok, bad = Execution("ok", 0, None, "70\n", ""), Execution("error", 1, None, "", "boom")
    solver = _action("solver", 0, r"\boxed{70}")
    found = outcome(
        _episode(
            solver, _action("coder", 0, "a", bad), _action("coder", 1, "b", ok), _action("verifier", 0, r"\boxed{070}")
        ),
        KEY,
    )
    assert found.success
    assert found.metrics == {"verifier/boxed": 1.0, "coder/used_tool": 1.0, "coder/ran": 1.0}
    found = outcome(_episode(solver, _action("coder", 0, "a", bad), _action("verifier", 0, "70")), KEY)
    assert not found.success
    assert "no balanced" in found.why
    assert found.metrics == {"verifier/boxed": 0.0, "coder/used_tool": 1.0, "coder/ran": 0.0}


def test_facts_that_do_not_apply_are_absent() -> None:
    assert outcome(_episode(_action("solver", 0, r"\boxed{70}")), KEY).metrics == {}
    found = outcome(_episode(_action("coder", 0, "no code"), _action("verifier", 0, r"\boxed{7}")), KEY)
    assert not found.success
    assert found.why == "7 is not 70"
    assert found.metrics == {"verifier/boxed": 1.0, "coder/used_tool": 0.0}


def test_another_problems_key_and_an_unknown_kind_are_errors() -> None:
    with pytest.raises(ValueError, match="join keys"):
        outcome(_episode(), Key("q", "70"))
    with pytest.raises(ValueError, match="graders: lab, math"):
        outcome(Episode("p#0", Problem("p", "poetry", ""), 0, ()), KEY)
