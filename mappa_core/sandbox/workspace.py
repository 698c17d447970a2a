"""A workspace as regular files: taken stock of, copied into the sandbox and out of it, by directory descriptors.

Nothing here follows a link or opens what is not a regular file: symbolic links, pipes, sockets and devices that agent
code leaves behind are not handed on. Empty directories neither.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from mappa_core.types import FileChange

MAX_FILES = 1000
_MAX_DEPTH = 16
_CHUNK = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_DIRECTORY = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_DIRECTORY


class TooMuchError(Exception):
    """A workspace with more files or bytes than it may have."""


@dataclass(frozen=True, slots=True)
class File:
    """One regular file: path below the workspace, size in bytes, BLAKE2b-128 of its content."""

    path: str
    size: int
    digest: str


def files(root: int, max_bytes: int) -> tuple[File, ...]:
    """The regular files below the directory `root` (a descriptor), by path; TooMuchError above the limits."""
    found: list[File] = []
    total = 0
    for path, handle in _walk(root, "", 0):
        with os.fdopen(handle, "rb") as file:
            # Hard links and holes: what counts is what a copy would take.
            total += os.fstat(handle).st_size
            if total > max_bytes or len(found) >= MAX_FILES:
                raise TooMuchError(path)
            found.append(File(path, os.fstat(handle).st_size, hashlib.file_digest(file, _blake2b).hexdigest()))
    return tuple(sorted(found, key=lambda f: f.path))


def copy(source: int, target: int, paths: tuple[str, ...], owner: int | None) -> None:
    """Copies files between two directories (descriptors); with `owner` they, and new directories, become that uid's."""
    for path in paths:
        *parents, name = path.split("/")
        into = _make_directories(target, parents, owner)
        # Removed first: an old hard link or symbolic link must not be written through.
        _unlink(name, into)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        writer = os.open(name, flags, 0o644, dir_fd=into)
        reader = _open_file(source, path)
        try:
            while chunk := os.read(reader, _CHUNK):
                _write_all(writer, chunk)
            if owner is not None:
                os.fchown(writer, owner, owner)
        finally:
            for handle in (reader, writer, into):
                os.close(handle)


def hand_back(inside: int, host: int, before: tuple[File, ...], after: tuple[File, ...]) -> None:
    """Makes the files of `host`, which are `before`, those of `inside`, which are `after`."""
    kept, same = {f.path for f in after}, set(before)
    remove(host, tuple(f.path for f in before if f.path not in kept))
    copy(inside, host, tuple(f.path for f in after if f not in same), None)


def remove(root: int, paths: tuple[str, ...]) -> None:
    """Removes files below `root`, and the directories that this empties."""
    for path in paths:
        *parents, name = path.split("/")
        for depth in range(len(parents), -1, -1):
            handle = _open_directory(root, parents[:depth])
            try:
                if depth == len(parents):
                    _unlink(name, handle)
                else:
                    os.rmdir(parents[depth], dir_fd=handle)
            except OSError:
                break  # not empty: others live there
            finally:
                os.close(handle)


def changes(before: tuple[File, ...], after: tuple[File, ...]) -> tuple[FileChange, ...]:
    """What turned one stock into the other, by path."""
    old, new = {f.path: f for f in before}, {f.path: f for f in after}
    found = [FileChange(_spell(p), "deleted", 0, "") for p in old.keys() - new.keys()]
    for path, file in new.items():
        if path not in old:
            found.append(FileChange(_spell(path), "created", file.size, file.digest))
        elif old[path] != file:
            found.append(FileChange(_spell(path), "changed", file.size, file.digest))
    return tuple(sorted(found, key=lambda c: c.path))


def _spell(path: str) -> str:
    """A file name that is not UTF-8, as text that is."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _walk(directory: int, prefix: str, depth: int) -> Iterator[tuple[str, int]]:
    """(path, open descriptor) of each regular file. The caller closes the descriptors."""
    if depth > _MAX_DEPTH:
        raise TooMuchError(prefix)
    with os.scandir(directory) as entries:
        for count, entry in enumerate(entries):
            if count > MAX_FILES:
                raise TooMuchError(prefix)
            is_directory = entry.is_dir(follow_symlinks=False)
            if not is_directory and not entry.is_file(follow_symlinks=False):
                continue
            try:
                inner = os.open(entry.name, _DIRECTORY if is_directory else _READ, dir_fd=directory)
            except PermissionError:
                continue  # made unreadable by the agent: not handed on
            if not is_directory:
                yield prefix + entry.name, inner
                continue
            try:
                yield from _walk(inner, f"{prefix}{entry.name}/", depth + 1)
            finally:
                os.close(inner)


def _open_directory(root: int, parents: list[str]) -> int:
    handle = os.dup(root)
    for name in parents:
        inner = os.open(name, _DIRECTORY, dir_fd=handle)
        os.close(handle)
        handle = inner
    return handle


def _open_file(root: int, path: str) -> int:
    *parents, name = path.split("/")
    directory = _open_directory(root, parents)
    try:
        handle = os.open(name, _READ, dir_fd=directory)
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise TooMuchError(path)
    return handle


def _make_directories(root: int, parents: list[str], owner: int | None) -> int:
    handle = os.dup(root)
    for name in parents:
        try:
            os.mkdir(name, 0o755, dir_fd=handle)
            if owner is not None:
                os.chown(name, owner, owner, dir_fd=handle, follow_symlinks=False)
        except FileExistsError:
            pass
        inner = os.open(name, _DIRECTORY, dir_fd=handle)
        os.close(handle)
        handle = inner
    return handle


def _unlink(name: str, directory: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def _blake2b() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)
