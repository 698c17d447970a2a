"""Durable things: the content store that runs share, stage manifests, and the run directory.

A payload is a file or a folder named by its digest, published by rename: it is there whole or not at all. A stage's
manifest names payloads by digest and is filed under the stage's key; `Store.stage` believes it only after the digests
are checked again. Refuses to return what it can't verify.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from mappa_core.config import ConfigError, ExperimentConfig, digest, parse
from mappa_core.types import Policy

T = TypeVar("T")
PRUNED = ".pruned"
"""Suffix of the mark that stands for a payload which was removed on purpose."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A payload in the store."""

    name: str
    digest: str
    size: int
    """bytes"""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a stage made: its key, its payloads, and small facts about them (counts, metrics)."""

    stage: str
    key: str
    artifacts: tuple[Artifact, ...]
    facts: dict[str, Any]

    def __getitem__(self, name: str) -> Artifact:
        """The artifact called `name`; KeyError where there is none."""
        return next(a for a in self.artifacts if a.name == name)


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Reads and writes the frozen dataclasses of `types` as JSON."""
    return TypeAdapter(kind)


def json_lines(kind: Any, rows: Iterable[Any]) -> bytes:
    """Dataclasses of `kind`, one a line."""
    return b"".join(adapter(kind).dump_json(row) + b"\n" for row in rows)


def file_digest(path: Path) -> str:
    """BLAKE2b-128 of a file's bytes; of a folder: of its sorted relative names and the digests of its files."""
    if path.is_dir():
        names = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
        return digest([[name, file_digest(path / name)] for name in names])
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def write_atomic(path: Path, text: str) -> None:
    """Writes `text` so that readers see the old file or the new one, never a part; survives a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)  # a temporary file is born private
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def code_digest(*modules: str) -> str:
    """Digest of the source of these modules, none of which is imported: a stage's key changes when its code does."""
    return digest([file_digest(_source(module)) for module in modules])


def _source(module: str) -> Path:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"there is no module {module}: mend the stage's list of the code it uses")
    return Path(spec.origin)


class Store:
    """A folder of payloads by digest (`objects/`) and of manifests by stage key (`stages/`)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.damaged: list[str] = []
        """What `find` met that was not what its digest says, for whoever tells people; it is recomputed."""
        for part in ("objects", "stages", "locks", "tmp"):
            (root / part).mkdir(parents=True, exist_ok=True)

    def path(self, artifact: Artifact) -> Path:
        """Where the payload lies."""
        return self.root / "objects" / artifact.digest[:2] / artifact.digest

    def put_rows(self, name: str, kind: Any, rows: Iterable[Any]) -> Artifact:
        """Stores dataclasses of `kind` as JSON lines."""
        prefix = f"rows-{os.getpid()}-"
        with tempfile.NamedTemporaryFile(dir=self.root / "tmp", prefix=prefix, delete=False) as file:
            file.write(json_lines(kind, rows))
            file.flush()
            os.fsync(file.fileno())
        return self.adopt(name, Path(file.name))

    def adopt(self, name: str, source: Path) -> Artifact:
        """Moves a file or folder on the store's file system into it, under its digest."""
        size = sum(p.stat().st_size for p in source.rglob("*")) if source.is_dir() else source.stat().st_size
        artifact = Artifact(name, file_digest(source), size)
        target = self.path(artifact)
        target.parent.mkdir(exist_ok=True)
        if target.exists() and file_digest(target) == artifact.digest:
            _remove(source)
        else:
            _remove(target)
            source.rename(target)
        target.with_name(target.name + PRUNED).unlink(missing_ok=True)
        return artifact

    def prune(self, artifact: Artifact) -> None:
        """Removes a payload that was proven and can be made again; manifests that name it stay believed."""
        path = self.path(artifact)
        if path.exists():
            write_atomic(path.with_name(path.name + PRUNED), "")
            _remove(path)

    def rows(self, artifact: Artifact, kind: Any) -> list[Any]:
        """The dataclasses of a JSON-lines payload; ValueError where its bytes are not what its digest says."""
        path = self.path(artifact)
        if file_digest(path) != artifact.digest:
            raise ValueError(f"{path} is damaged (its digest differs): delete it and run again to recompute it")
        return [adapter(kind).validate_json(line) for line in path.read_bytes().splitlines()]

    def scratch(self, prefix: str) -> Path:
        """A new empty folder on the store's file system, for a payload in the making; gone when this process is."""
        return Path(tempfile.mkdtemp(dir=self.root / "tmp", prefix=f"{prefix}-{os.getpid()}-"))

    def sweep(self) -> None:
        """Removes what processes that were killed left in the making."""
        for path in (self.root / "tmp").iterdir():
            pid = path.name.rsplit("-", 2)[-2] if path.name.count("-") >= 2 else ""
            if pid.isdigit() and not Path("/proc", pid).exists():
                _remove(path)

    def find(self, key: str) -> Manifest | None:
        """The manifest under `key` if every payload it names is whole; None otherwise."""
        path = self.root / "stages" / f"{key}.json"
        try:
            manifest = adapter(Manifest).validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            self.damaged.append(f"{path} is torn")
            return None  # recomputed, never trusted
        lost = [a for a in manifest.artifacts if not self._believed(a)]
        self.damaged += [f"{a.name} of {manifest.stage} ({self.path(a)}) is missing or damaged" for a in lost]
        return None if lost else manifest

    def whole(self, manifest: Manifest) -> bool:
        """Whether each payload exists and still has its digest, or was pruned."""
        return all(self._believed(a) for a in manifest.artifacts)

    def has(self, artifact: Artifact) -> bool:
        """Whether the payload is there and has its digest."""
        path = self.path(artifact)
        return path.exists() and file_digest(path) == artifact.digest

    def _believed(self, artifact: Artifact) -> bool:
        path = self.path(artifact)
        return self.has(artifact) or (not path.exists() and path.with_name(path.name + PRUNED).exists())

    def stage(self, stage: str, key: str, compute: Callable[[], tuple[list[Artifact], dict[str, Any]]]) -> Manifest:
        """The manifest under `key`, computed once: two that miss at once wait for one."""
        with self.lock(key):
            found = self.find(key)
            if found is not None:
                return found
            artifacts, facts = compute()
            manifest = Manifest(stage, key, tuple(artifacts), facts)
            write_atomic(self.root / "stages" / f"{key}.json", adapter(Manifest).dump_json(manifest).decode())
            return manifest

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """One holder at a time over all processes; freed by the kernel when the holder dies."""
        with (self.root / "locks" / name).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _link(source: Path, target: Path) -> None:
    """Puts `source` at `target`: a hard link, or a copy where the file systems differ."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copy2(source, target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class RunDir:
    """A run directory: `config.json`, `steps/<k>/<stage>.json` (manifests), `policies/`, `summary.json`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: ExperimentConfig) -> RunDir:
        """Opens `path` for this config; ConfigError where it holds a run of another one."""
        run = cls(path)
        run.check(config)
        if not (path / "config.json").exists():
            write_atomic(path / "config.json", config.model_dump_json(indent=1))
        return run

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The run is this process's alone; ConfigError where another one has it. Freed by the kernel at its death."""
        with (self.path / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise ConfigError(
                    f"{self.path} is being trained by process {file.read().strip()}: wait for it, or stop it first"
                ) from None
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

    def check(self, config: ExperimentConfig) -> None:
        """ConfigError where the directory holds anything but a run of this config; writes nothing."""
        if (self.path / "config.json").exists():
            if self.config() != config:
                raise ConfigError(f"{self.path} holds a run of another config: give another --dir, or delete it")
        elif self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ConfigError(f"{self.path} exists and is not a run directory: give another --dir")

    def config(self) -> ExperimentConfig:
        """The resolved config; ConfigError where there is none, or none that can be read."""
        path = self.path / "config.json"
        try:
            return parse(json.loads(path.read_text()), str(path))
        except FileNotFoundError as error:
            raise ConfigError(f"{self.path} is not a run directory: it has no config.json") from error
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path} is not JSON ({error}): was it edited? Mend it, or start a new run") from error

    def record(self, step: int, manifest: Manifest, store: Store) -> None:
        """Files a stage's manifest under its step, and its files beside it, linked, not copied."""
        folder = self.path / "steps" / str(step)
        write_atomic(folder / f"{manifest.stage}.json", adapter(Manifest).dump_json(manifest, indent=1).decode())
        for artifact in manifest.artifacts:
            if store.path(artifact).is_file():
                _link(store.path(artifact), folder / artifact.name)

    def manifest(self, step: int, stage: str) -> Manifest:
        """The manifest of a stage of a step; ConfigError where the run has none."""
        path = self.path / "steps" / str(step) / f"{stage}.json"
        try:
            return adapter(Manifest).validate_json(path.read_bytes())
        except FileNotFoundError as error:
            raise ConfigError(f"{self.path} has no {stage} of step {step}") from error
        except ValidationError as error:
            raise ConfigError(
                f"{path} is torn: delete it, and `mappa resume` or the same run again restores it"
            ) from error

    def has(self, step: int, stage: str) -> bool:
        """Whether the run has a manifest of this stage of this step."""
        return (self.path / "steps" / str(step) / f"{stage}.json").is_file()

    def steps(self) -> list[int]:
        """The steps that have any manifest, in order."""
        root = self.path / "steps"
        return sorted(int(p.name) for p in root.iterdir()) if root.is_dir() else []

    def link_policies(self, policies: Iterable[Policy]) -> None:
        """Links each role's weights as `policies/ROLE`, a Hugging Face directory, in place of what was there."""
        for policy in policies:
            folder = self.path / "policies" / policy.role
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for source in Path(policy.path).iterdir():
                _link(source, folder / source.name)

    def write(self, name: str, data: Mapping[str, Any]) -> None:
        """Writes `name` (a .json file) atomically."""
        write_atomic(self.path / name, json.dumps(data, indent=1, allow_nan=False) + "\n")
