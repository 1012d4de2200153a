"""Small files of this machine, such as tokens, pid files and notes: each is replaced as a whole."""

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
_ANYBODY = 0o666  # as far as the process's umask lets them


def write_whole(path: Path, text: str, *, lasting: bool = False, mode: int = _ANYBODY) -> None:
    """Replace a file's content so that a reader sees the old text or the new one, never a part.

    `lasting`: it outlives a power failure, for which the caller waits; otherwise the file may then be empty.
    `mode` are its permissions. If it cannot be written, the file stays as it was, and the error names it. A
    killed process leaves one of the `drafts_of` the file.
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
        raise OSError(error.errno, error.strerror, str(path)) from error  # which file it was
    finally:
        draft.unlink(missing_ok=True)
    if lasting:
        sync(path.parent)


def copy_whole(source: Path, target: Path) -> None:
    """Copy a file and its time, so that the copy is there as a whole or not at all, whatever happens."""
    with drafted(target) as draft:
        shutil.copyfile(source, draft)
        found = source.stat()
        os.utime(draft, ns=(found.st_atime_ns, found.st_mtime_ns))


@contextmanager
def drafted(target: Path) -> Iterator[Path]:
    """Yield where to write a file, which has its name once it is whole and on the disk.

    Directories are made where they are missing. A killed process leaves one of the `drafts_of` the target.
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
    """Make the directory of a home, for its owner alone; an existing directory stays unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=_OWNER_ALONE, exist_ok=True)


def make_private(path: Path) -> None:
    """Make a directory in a home, and the home; one of ours that others could look into is closed to them.

    It stays open on a file system that knows no such thing.
    """
    make_home(path.parent)
    path.mkdir(mode=_OWNER_ALONE, exist_ok=True)
    state = path.stat()
    if state.st_uid == os.geteuid() and state.st_mode & OTHERS:
        with suppress(OSError):
            path.chmod(_OWNER_ALONE)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4()}.tmp")


def drafts_of(path: Path) -> list[Path]:
    """Return what processes that were killed while they wrote a file have left beside it."""
    return list(path.parent.glob(f".{path.name}.*.tmp"))
