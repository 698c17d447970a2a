import time

import pytest

from mappa_core import teams
from mappa_core.teams.language import fill, python_code, tool_answer
from mappa_core.types import Execution, ExecutionStatus

TRACEBACK = """Traceback (most recent call last):
  File "/work/main.py", line 1, in <module>
    print(1 / 0)
          ~~^~~
ZeroDivisionError: division by zero
"""
SYNTAX = """  File "/work/main.py", line 1
    print((3 + 4)
         ^
SyntaxError: '(' was never closed
"""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("so\n```python\nprint(1)\n```\nend", "print(1)\n"),
        ("```python\nx = 1\n```\nthen\n```py\nprint(x)\n```", "x = 1\nprint(x)\n"),
        ("```Python3 \nprint(1)\n``` ", "print(1)\n"),
        ("1. first\n   ```python\n   if 1:\n       print(2)\n   ```", "if 1:\n    print(2)\n"),
        ("```python\r\nprint(1)\r\n```\r\n", "print(1)\n"),
        ("```python\nprint('''a\n\nb''')\n```", "print('''a\n\nb''')\n"),
        ('```python\nprint("```")\n```', 'print("```")\n'),
        ("```python\nprint(1)", None),
        ("```python\nx = 1\n```\n```python\nprint(x)", "x = 1\n"),
        ("```\nprint(1)\n```", None),
        ("```pycon\n>>> 1\n```", None),
        ("```javascript\n1\n```", None),
        ("````markdown\n```python\nprint(1)\n```\n````", None),
        ("```text\n1\n```\n```python\nprint(1)\n```", "print(1)\n"),
        ("```python\n\n```", None),
        ("a ```python print(1)``` b", None),
        ("print(1)", None),
        ("", None),
    ],
)
def test_closed_python_blocks_are_one_program(text: str, code: str | None) -> None:
    assert python_code(text) == code


def test_reading_blocks_is_quick_whatever_the_text() -> None:
    started = time.perf_counter()
    for text in ("```" + " " * 200_000 + "`", "`" * 200_000, "```python\n" * 20_000, " \t" * 100_000):
        assert python_code(text) is None
    assert time.perf_counter() - started < 2


def ran(status: ExecutionStatus, stdout: str = "", stderr: str = "", exit_code: int | None = 0) -> Execution:
    return Execution(status, exit_code, None, stdout, stderr, seconds=1.5)


@pytest.mark.parametrize(
    ("execution", "answer"),
    [
        (ran("ok", "35\n"), "35"),
        (ran("ok", "  1\n 2\n\n", "a warning"), "  1\n 2"),
        (ran("ok", " \n"), "(no output)"),
        (ran("error", "", SYNTAX, 1), "SyntaxError: '(' was never closed"),
        (ran("error", "1\n", TRACEBACK, 1), "1\nZeroDivisionError: division by zero"),
        (ran("error", "", "\n".join("abcdefgh"), 1), "d\ne\nf\ng\nh"),
        (ran("error", "bye", "", 3), "bye\n(exit code 3)"),
        (ran("wall_time", "1\n", TRACEBACK, None), "1\n(timed out)"),
        (ran("cpu_time", exit_code=None), "(timed out)"),
        (ran("memory", exit_code=None), "(out of memory)"),
        (ran("output", "1\n", exit_code=None), "1\n(stopped: too much output)"),
        (ran("signal", exit_code=None), "(killed)"),
    ],
)
def test_the_tool_answers_with_what_was_printed_and_how_it_failed(execution: Execution, answer: str) -> None:
    assert tool_answer(execution) == answer


def test_fill_is_one_pass_and_leaves_other_braces() -> None:
    told = {"problem": "{a.text} \\1 \\g<0>", "a.text": "no"}
    assert fill("{problem} \\boxed{} {x} {1}", told.__getitem__) == "{a.text} \\1 \\g<0> \\boxed{} {x} {1}"


def test_mathchat_is_a_chain_of_three() -> None:
    solver, coder, verifier = teams.team("mathchat").roles
    assert [(r.name, r.tools, r.max_turns) for r in (solver, coder, verifier)] == [
        ("solver", (), 1), ("coder", ("python",), 2), ("verifier", (), 1)
    ]  # fmt: skip
    assert "{solver.text}" in coder.prompt
    assert "{solver.text}" not in verifier.prompt
