"""The set-up: what it refuses and how it says so, and that locks, bounds, rooms and shipped presets fit together."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from mappa_core import config

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
FORBIDDEN = {"torchvision", "torchaudio", "torchcodec", "llama-cpp-python", "triton", "vllm"}
SCRIPTS = {"mappa_core.sandbox.inside"}
"""Run as a program, never imported."""
TORCH_ROOMS = {"mappa_core.engine", "mappa_core.learn.batch", "mappa_core.learn.loss"}


def pins(lock: str) -> dict[str, Version]:
    """Package to exact version; a line that is no pin, or a package twice, is an error."""
    lines = (REPOSITORY / "requirements" / f"{lock}.txt").read_text().splitlines()
    found: dict[str, Version] = {}
    for line in (line for line in lines if line and not line.startswith("#")):
        match = re.fullmatch(r"([a-z0-9-]+)==([0-9][0-9a-z.+]*)", line)
        assert match, f"not an exact pin: {line!r}"
        assert match[1] not in found, f"{match[1]} is pinned twice"
        found[match[1]] = Version(match[2])
    return found


def bounds(*extras: str) -> list[Requirement]:
    """What pyproject.toml asks for."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    return [Requirement(line) for line in lines]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What the set-up reads, in a folder of its own."""
    shutil.copytree(REPOSITORY / "requirements", tmp_path / "clone" / "requirements")
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path / "clone")
    return tmp_path / "clone"


def install(clone: Path, programs: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the set-up where `programs` are all there is on the PATH, beside what a shell script needs."""
    path = clone.parent / "bin"
    path.mkdir()
    for name in ("bash", "cat", "dirname", "flock", "sha256sum", "touch", "mkdir", "rm", "grep", "tail"):
        (path / name).symlink_to(str(shutil.which(name)))
    for name, body in programs.items():
        (path / name).write_text(f"#!{shutil.which('bash')}\n{body}\n")
        (path / name).chmod(0o755)
    command = [str(path / "bash"), "requirements/install.sh", *arguments]
    return subprocess.run(command, cwd=clone, env={"PATH": str(path)}, capture_output=True, text=True, timeout=60)


def linux(machine: str = "x86_64", system: str = "Linux") -> str:
    return f'[ "$1" = -s ] && echo {system} || echo {machine}'


OLD_PYTHON = "exit 1"  # what the version check of another Python answers
PYTHON_WITHOUT_VENV = 'case "$2" in *ensurepip*) exit 1;; esac'


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ({"uname": linux("arm64", "Darwin")}, "set-up: needs Linux on x86-64, and this is Darwin on arm64\n"),
        ({"uname": linux("aarch64")}, "set-up: needs Linux on x86-64, and this is Linux on aarch64\n"),
        ({"uname": linux()}, "set-up: needs Python 3.11 or 3.12 on the PATH, and found neither\n"),
        (
            {"uname": linux(), "python3": OLD_PYTHON, "python3.12": OLD_PYTHON},
            "set-up: needs Python 3.11 or 3.12 on the PATH, and found neither\n",
        ),
        (
            {"uname": linux(), "python3.12": PYTHON_WITHOUT_VENV},
            "set-up: python3.12 has no venv module; on Debian or Ubuntu: apt install python3.12-venv\n",
        ),
    ],
)
def test_a_machine_it_was_not_made_for_is_refused_in_one_line(clone: Path, programs: dict[str, str], said: str) -> None:
    done = install(clone, programs)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    assert not (clone / ".venv").exists()


def test_an_unknown_lock_is_refused_in_one_line(clone: Path) -> None:
    done = install(clone, {"uname": linux()}, "tpu")
    assert (done.returncode, done.stderr) == (2, "set-up: no lock requirements/tpu.txt; give cpu or gpu\n")


FAKE_PYTHON = """\
case "$*" in
    "-V") echo Python 3.11.0;;
    "-m venv "*) mkdir -p "$3/bin"; echo "command = $*" >"$3/pyvenv.cfg"
        printf '#!%s\\n[ ! -e ../broken ]' "$BASH" >"$3/bin/pip"
        chmod +x "$3/bin/pip"; for name in uv python; do cp "$3/bin/pip" "$3/bin/$name"; done;;
esac"""


def test_it_runs_once_says_where_it_failed_and_starts_anew_after_an_interruption(clone: Path) -> None:
    programs = {"uname": linux(), "python3.11": FAKE_PYTHON}
    for name in ("chmod", "cp"):
        programs[name] = f'exec {shutil.which(name)} "$@"'
    (clone.parent / "broken").touch()
    failed = install(clone, programs)
    assert failed.returncode == 1
    assert "torch, CPU build (200 MB) failed; see" in failed.stderr
    (clone / ".venv" / "half-written").touch()

    (clone.parent / "broken").unlink()
    again = rerun(clone)
    assert again.returncode == 0, again.stderr
    assert "set-up: done in" in again.stdout
    assert not (clone / ".venv" / "half-written").exists()

    kept = clone / ".venv" / "kept"
    kept.touch()
    assert rerun(clone).stdout == ""
    with (clone / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert "set-up: done in" in rerun(clone).stdout
    assert kept.exists()

    moved = clone.rename(clone.parent / "moved")
    assert "set-up: done in" in rerun(moved).stdout
    assert not (moved / ".venv" / "kept").exists()


def rerun(clone: Path) -> subprocess.CompletedProcess[str]:
    path = clone.parent / "bin"
    command = [str(path / "bash"), "requirements/install.sh"]
    return subprocess.run(command, cwd=clone, env={"PATH": str(path)}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("lock", "extras"), [("cpu", ("cpu", "dev")), ("gpu", ("gpu", "dev"))])
def test_the_locks_are_within_the_bounds(lock: str, extras: tuple[str, ...]) -> None:
    locked = pins(lock)
    for asked in bounds(*extras):
        assert asked.specifier.contains(locked[canonicalize_name(asked.name)]), f"{lock}.txt is outside of {asked}"


def test_the_cpu_lock_leaves_out_what_breaks_it() -> None:
    locked = pins("cpu")
    assert not FORBIDDEN & locked.keys()
    assert not [name for name in locked if name.startswith("nvidia-")]
    assert str(locked["torch"]).endswith("+cpu")


@pytest.mark.skipif("+cpu" not in version("torch"), reason="the environment is of another lock")
def test_the_environment_is_the_lock() -> None:
    code = "from importlib.metadata import distributions as d; [print(x.name, x.version) for x in d()]"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")
    installed: dict[str, Version] = {
        canonicalize_name(line.split()[0]): Version(line.split()[1]) for line in listed if line
    }
    other = {name: (want, installed.get(name)) for name, want in pins("cpu").items() if installed.get(name) != want}
    assert not other, f"locked and installed differ: {other}; run `make setup`"


@pytest.mark.parametrize("preset", config.presets())
def test_every_shipped_preset_is_valid(preset: str) -> None:
    assert config.load(preset).name == preset


def test_all_but_the_torch_rooms_import_without_torch() -> None:
    modules = sorted(
        ".".join(file.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")
        for file in (REPOSITORY / "mappa_core").rglob("*.py")
    )
    light = [m for m in modules if not any(m == room or m.startswith(f"{room}.") for room in TORCH_ROOMS | SCRIPTS)]
    code = (
        f"import sys, importlib\nfor m in {light}:\n    importlib.import_module(m)\n"
        "    assert 'torch' not in sys.modules, m"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", [".ci/run", "requirements/install.sh"])
def test_scripts_are_executable_and_parse(script: str) -> None:
    assert (REPOSITORY / script).stat().st_mode & stat.S_IXUSR
    subprocess.run(["bash", "-n", script], cwd=REPOSITORY, check=True, env=dict(os.environ))
