import subprocess
import sys
from pathlib import Path

from tasks.data import build, recorded

ROOT = Path(__file__).parent.parent.parent


def test_built_data_are_what_data_dvc_records(tmp_path: Path) -> None:
    """The MD5 that DVC itself computes of freshly built data, in a repository of its own."""
    build(tmp_path)
    dvc = str(Path(sys.executable).parent / "dvc")
    for command in (["init", "--no-scm", "-q"], ["add", "-q", "data"]):
        done = subprocess.run([dvc, *command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    assert recorded(tmp_path) == recorded(ROOT)
