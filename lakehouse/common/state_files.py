"""Atomic writes of small local files, such as tokens, PID files and notes."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

OWNER_ONLY = 0o600
OTHERS = 0o077
_OWNER_ALONE = 0o700
_ANYBODY = 0o666  # restricted by the process umask


def write_whole(path: Path, text: str, *, lasting: bool = False, mode: int = _ANYBODY) -> None:
    """Replace the content of a file atomically: readers see either the old or the new text.

    With `lasting`, the file is synced to disk; otherwise it could be empty after a power failure. `mode` sets
    the file's permissions. If the write fails, the file is unchanged, and the error names the file. If the
    process is killed, a temporary file can remain (see `drafts_of`).
    """
    draft = _draft_of(path)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(text.encode())
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # name the file, not the draft
    finally:
        draft.unlink(missing_ok=True)
    if lasting:
        sync(path.parent)


def copy_whole(source: Path, target: Path) -> None:
    """Copy a file and its times atomically. Even after a power failure, the copy is complete or absent."""
    with drafted(target) as draft:
        shutil.copyfile(source, draft)
        found = source.stat()
        os.utime(draft, ns=(found.st_atime_ns, found.st_mtime_ns))


@contextmanager
def drafted(target: Path) -> Iterator[Path]:
    """Yield a temporary path to write to. After the block, the file is synced and renamed to the target.

    Missing parent directories are created. A killed process leaves a temporary file behind (`drafts_of`).
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_of(target)
    try:
        yield draft
        sync(draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def make_home(path: Path) -> None:
    """Create a home directory with mode 0700. An existing directory is left unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=_OWNER_ALONE, exist_ok=True)


def make_private(path: Path) -> None:
    """Create a directory, and the home directory above it, with mode 0700.

    An existing directory that belongs to this user is also set to this mode. On a file system without
    permissions, it remains accessible to others.
    """
    make_home(path.parent)
    path.mkdir(mode=_OWNER_ALONE, exist_ok=True)
    state = path.stat()
    if state.st_uid == os.geteuid() and state.st_mode & OTHERS:
        with suppress(OSError):
            path.chmod(_OWNER_ALONE)


def sync(path: Path) -> None:
    """Wait until a file's content, or a directory's entries, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4()}.tmp")


def drafts_of(path: Path) -> list[Path]:
    """Return the temporary files that killed processes left next to a file."""
    return list(path.parent.glob(f".{path.name}.*.tmp"))
