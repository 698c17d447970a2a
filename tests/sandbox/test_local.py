"""What the sandbox does with ordinary and with broken programs, and what it records of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mappa_core.sandbox import Limits, SandboxError, check, run_code
from mappa_core.sandbox.excerpt import Excerpt
from mappa_core.types import Execution

LIMITS = Limits(wall_time_s=60.0, cpu_time_s=30, memory_mb=256, disk_mb=16, processes=16, output_chars=400)


def run(code: str, workspace: Path, limits: Limits = LIMITS) -> Execution:
    return run_code(code, workspace, limits)


def test_output_of_a_program(tmp_path: Path) -> None:
    assert run("print((3+4)*5)", tmp_path) == Execution("ok", 0, None, "35\n", "")


def test_the_level_here_is_full() -> None:
    found = check()
    assert found.level == "full", found.why


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = (", "SyntaxError: '(' was never closed"),
        ("print(1)\0", "cannot contain null bytes"),
        ("print('\udcff')", "can't decode byte 0xff"),
        ("print('\ud800')", "can't decode byte"),
        ("  print(1)", "IndentationError"),
        ("1/0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit('no answer')", "no answer"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_a_broken_program_is_an_error_of_its_own(tmp_path: Path, code: str, said: str) -> None:
    execution = run(code, tmp_path)
    assert (execution.status, execution.exit_code, execution.stdout) == ("error", 1, "")
    assert said in execution.stderr


def test_an_empty_program_is_fine(tmp_path: Path) -> None:
    assert run("", tmp_path) == Execution("ok", 0, None, "", "")


def test_traceback_shows_the_program_and_nothing_of_this_machine(tmp_path: Path) -> None:
    execution = run("def half(x):\n    return x / 0\nhalf(1)", tmp_path)
    assert execution.stderr == (
        'Traceback (most recent call last):\n  File "/action.py", line 3, in <module>\n    half(1)\n'
        '  File "/action.py", line 2, in half\n    return x / 0\n           ~~^~~\n'
        "ZeroDivisionError: division by zero\n"
    )


def test_two_runs_of_what_often_differs_are_equal(tmp_path: Path) -> None:
    code = "import os\ndef f(): pass\nprint(f, object(), {'a', 'b', 'c'}, os.getpid(), os.getcwd(), __file__, __name__)"
    assert run(code, tmp_path) == run(code, tmp_path)


def test_exit_codes_and_signals(tmp_path: Path) -> None:
    assert run("exit(3)", tmp_path) == Execution("error", 3, None, "", "")
    assert run("quit()", tmp_path).status == "ok"
    crash = run("import ctypes; ctypes.string_at(0)", tmp_path)
    assert (crash.status, crash.exit_code, crash.signal) == ("signal", None, 11)


def test_what_was_printed_before_the_end_is_kept(tmp_path: Path) -> None:
    execution = run("print('half way')\nimport os; os.kill(os.getpid(), 9)", tmp_path)
    assert (execution.status, execution.signal, execution.stdout) == ("signal", 9, "half way\n")


def test_libraries_and_child_processes_work(tmp_path: Path) -> None:
    code = (
        "import numpy, subprocess, sys\nprint(numpy.arange(4).sum())\n"
        "print(subprocess.run([sys.executable, '-S', '-c', 'print(7)'], capture_output=True, text=True).stdout)"
    )
    assert run(code, tmp_path).stdout == "6\n7\n\n"


def test_files_are_recorded_and_kept_for_the_next_program(tmp_path: Path) -> None:
    (tmp_path / "given.txt").write_text("2")
    (tmp_path / "gone.txt").write_text("3")
    code = (
        "import os\nn = int(open('given.txt').read())\nos.makedirs('a/b'); open('a/b/new.txt', 'w').write('five!')\n"
        "open('given.txt', 'w').write(str(n + 1)); os.unlink('gone.txt'); print(n)"
    )
    first = run(code, tmp_path)
    assert first.stdout == "2\n"
    assert [(f.path, f.kind, f.size) for f in first.files] == [
        ("a/b/new.txt", "created", 5),
        ("given.txt", "changed", 1),
        ("gone.txt", "deleted", 0),
    ]
    second = run("import os; print(open('given.txt').read(), open('a/b/new.txt').read(), os.listdir())", tmp_path)
    assert second.stdout in ("3 five! ['a', 'given.txt']\n", "3 five! ['given.txt', 'a']\n")
    assert second.files == ()
    run("import shutil; shutil.rmtree('a'); open('a', 'w').write('now a file')", tmp_path)
    assert (tmp_path / "a").read_text() == "now a file"


def test_odd_file_names_are_recorded_as_text(tmp_path: Path) -> None:
    execution = run("open('new\\nline', 'w'); open(b'\\xff', 'w'); open('\\u00e9', 'w')", tmp_path)
    assert sorted(f.path for f in execution.files) == ["\\xff", "new\nline", "\u00e9"]
    assert (tmp_path / os.fsdecode(b"\xff")).exists()


def test_a_module_left_in_the_workspace_does_not_replace_the_library(tmp_path: Path) -> None:
    for name in ("random.py", "sitecustomize.py", "usercustomize.py", "_socket.py", "mine.py"):
        (tmp_path / name).write_text("print('poisoned')")
    assert run("import random, _socket; print('clean')", tmp_path).stdout == "clean\n"
    assert run("import mine", tmp_path).stdout == "poisoned\n"


def test_missing_workspace_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="make the directory first"):
        run("print(1)", tmp_path / "missing")


def test_long_output_keeps_head_and_tail_and_counts_the_middle(tmp_path: Path) -> None:
    execution = run("print('a' * 200 + 'b' * 5000 + 'c' * 199)", tmp_path)
    assert execution.status == "ok"
    assert execution.stdout == "a" * 200 + "\n[... 5000 characters left out ...]\n" + "c" * 199 + "\n"


def test_excerpt_counts_characters_across_any_cut_of_the_bytes() -> None:
    data = ("\u00e9" * 100 + "z").encode()
    for step in (1, 3, 7, 1000):
        excerpt = Excerpt(9)
        for start in range(0, len(data), step):
            excerpt.feed(data[start : start + step])
        excerpt.feed(b"")
        assert excerpt.text() == "\u00e9" * 5 + "\n[... 92 characters left out ...]\n" + "\u00e9" * 3 + "z"
        assert excerpt.bytes == 201
