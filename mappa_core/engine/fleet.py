"""The fleet: a Ray session with a sampler and a trainer in it, started side by side and ended together.

Without RAY_ADDRESS it is a local cluster of its own that no other fleet can meet; with it, the cluster there, in a
namespace of its own. Refuses to leave a process behind, and to wait without a limit.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, TypeVar

import psutil
import ray

from mappa_core.config import Engine
from mappa_core.engine.calls import EngineError
from mappa_core.engine.sampler import Sampler

OBJECTS_BYTES = 128 * 2**20
"""Ray's object store: token lists pass through it, weights don't."""
SOCKET_SUFFIX = 66
"""What Ray adds to its temporary directory, at most; the path of a unix socket ends at 107."""
PREFIX = "mappa-"
LEFTOVER_S = 86400.0
"""How long the logs of a killed process stay."""


class Part(Protocol):
    """Something that was started and can be waited for."""

    def ready(self, timeout_s: float) -> None:
        """Returns when it is up; EngineError says why not."""

    def stop(self) -> None:
        """Ends its processes."""


T = TypeVar("T", bound=Part)


class Session:
    """A connection to Ray: a local cluster of our own, or a namespace in a given one."""

    def __init__(self, keep_logs: Path | None = None) -> None:
        """Starts or joins; `keep_logs`: a folder that gets the logs of a local cluster when it stops."""
        if ray.is_initialized():
            raise EngineError("this process has a Ray session already: stop it first")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # One day Ray will stop hiding GPUs from actors that ask for none; it warns until one says which one wants.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        self.namespace = f"mappa-{uuid.uuid4().hex[:12]}"
        self._keep_logs = keep_logs
        self._temp: Path | None = None
        given = os.environ.get("RAY_ADDRESS")
        try:
            if given:
                ray.init(given, namespace=self.namespace, log_to_driver=False, logging_level=logging.ERROR)
            else:
                self._start_local()
        except Exception as error:  # Ray raises the bare class where one of its processes did not start
            at = f"; look in {self.logs}" if self._temp else f" at RAY_ADDRESS={given}: is it up, is its token here?"
            self._end(20.0)
            raise EngineError(
                f"Ray did not start ({(str(error).splitlines() or [type(error).__name__])[0]}){at}"
            ) from error
        except BaseException:  # Ctrl-C in the middle of it
            self.stop()
            raise

    def _start_local(self) -> None:
        # Unlike a name in lower case, one in upper case is not Ray's: these are two of its own settings.
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # idle workers: 2 s of CPU, 80 MB each
        os.environ.setdefault("RAY_enable_worker_prestart", "0")
        place = _short_directory()
        _sweep(place)
        self._temp = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))
        # Token authentication stays on, as is Ray's default: it opens its ports on every interface.
        ray.init(
            address="local",
            namespace=self.namespace,
            num_cpus=cpus(),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=OBJECTS_BYTES,
            _temp_dir=str(self._temp),
        )

    @property
    def logs(self) -> Path | None:
        """Where the logs are while it runs; None where the cluster is not ours."""
        return self._temp / "session_latest" / "logs" if self._temp else None

    def processes(self) -> list[psutil.Process]:
        """Those of a cluster of our own: what names its directory, and what that started."""
        children = [p for p in psutil.Process().children() if self._temp and str(self._temp) in _command(p)]
        return [p for child in children for p in (child, *child.children(recursive=True))]

    def stop(self, timeout_s: float = 20.0) -> None:
        """Leaves; a cluster of our own is ended: returns when its last process is gone."""
        self._end(timeout_s)
        if self._temp is not None:
            shutil.rmtree(self._temp, ignore_errors=True)  # sockets may vanish while it is walked
            self._temp = None

    def _end(self, timeout_s: float) -> None:
        mine = self.processes()
        ray.shutdown()
        _, alive = psutil.wait_procs(mine, timeout=timeout_s)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=timeout_s)
        if self._keep_logs is not None and self.logs is not None and self.logs.is_dir():
            shutil.copytree(self.logs, self._keep_logs, dirs_exist_ok=True, ignore_dangling_symlinks=True)


class Fleet(Generic[T]):
    """Session, sampler and trainer of a run. A context manager: leaving it stops everything."""

    def __init__(self, session: Session, sampler: Sampler, trainer: T) -> None:
        self.session = session
        self.sampler = sampler
        self.trainer = trainer

    def stop(self) -> None:
        """Ends actors and session; returns when none of their processes is left."""
        try:
            self.trainer.stop()
            self.sampler.stop()
        finally:
            self.session.stop()

    def __enter__(self) -> Fleet[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def start(
    base: Path,
    engine: Engine,
    start_trainer: Callable[[float, int], T],
    progress: Callable[[str], None],
    keep_logs: Path | None = None,
) -> Fleet[T]:
    """A fleet whose sampler and trainer are up, within engine.start_timeout_s seconds; EngineError says what was not.

    `start_trainer(cpus, threads)`: returns a trainer that is starting; each rank takes that share of Ray's CPUs and
    that many OpenMP threads. `progress`: told what is being waited for.
    """
    deadline = time.monotonic() + engine.start_timeout_s
    progress("starting Ray")
    session = Session(keep_logs)
    try:
        share, threads = shares(cpus(), engine.ranks)
        sampler = Sampler.start(base, engine, cpus=share, threads=threads)
        trainer = start_trainer(share, threads)
        fleet = Fleet(session, sampler, trainer)
        for part, name in ((sampler, "the sampler (vLLM)"), (trainer, f"{engine.ranks} trainer ranks (DeepSpeed)")):
            progress(f"waiting for {name}")
            part.ready(max(1.0, deadline - time.monotonic()))
    except BaseException:
        session.stop()  # an actor does not outlive its session
        raise
    return fleet


def cpus() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def shares(processors: int, ranks: int) -> tuple[float, int]:
    """CPUs of each actor, so that a sampler and `ranks` ranks fit whatever there is, and OpenMP threads of each.

    Whole CPUs where there are enough. Actors take turns (one samples, or all ranks train), but a rank that waits and a
    sampler that runs must never want more threads than there are processors.
    """
    share = processors / (ranks + 1)
    return (float(int(share)) if share >= 1 else int(share * 100) / 100), max(1, processors // ranks)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it ended while we looked
        return ""


def _short_directory() -> str:
    """A temporary directory in which Ray's sockets still have paths that a unix socket can have."""
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108
        if len(f"{place}/{PREFIX}1234567-12345678") + SOCKET_SUFFIX <= 107 and os.access(place, os.W_OK):
            return place
    raise EngineError("no short writable temporary directory for Ray's sockets: set TMPDIR to one under 18 characters")


def _sweep(place: str) -> None:
    """Removes what processes that were killed left in `place`, a day later."""
    for path in Path(place).glob(f"{PREFIX}[0-9]*-*"):
        pid = path.name.split("-")[1]
        mine, old = path.stat().st_uid == os.getuid(), time.time() - path.stat().st_mtime > LEFTOVER_S
        if mine and old and pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(path, ignore_errors=True)
