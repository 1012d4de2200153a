"""Access a lake's files without a JVM: directly on a local disk, or through pyarrow elsewhere.

Like deltalake, this module takes an object store's address and credentials from the environment (AWS_...). In
an object store, looking up a file takes one request, and reading a file takes two. One request lists up to a
thousand names. Functions raise OSError if a file cannot be accessed.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lakehouse.common.paths import is_local, location

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

_OBJECT_STORES = ("s3://", "gs://", "abfs://", "abfss://")
_AT_ONCE = 16
_READ_WHOLE = 8 * 1024 * 1024  # bytes; larger files are read in parts, on demand
_ONE_REQUEST = "?allow_delayed_open=true"  # writes a small object with one request instead of three
_One = TypeVar("_One")
_Other = TypeVar("_Other")


@dataclass(frozen=True)
class Found:
    """An existing file. `stamp` changes when the file is replaced; `modified_ms` is in epoch milliseconds."""

    stamp: Hashable
    modified_ms: int
    text: Callable[[], str]


@dataclass(frozen=True)
class Stored:
    """A file in a listing: path relative to the listed directory, size, and modification time (epoch ms)."""

    path: str
    size_bytes: int
    modified_ms: int


class Files(ABC):
    """Access to the files below a path, by names relative to that path. Thread-safe.

    If `is_far` is true, every access is a network request, and `each` sends several requests concurrently.
    """

    is_far: bool

    @abstractmethod
    def exist(self) -> bool:
        """Return whether the directory exists. In an object store, an empty directory does not exist."""

    @abstractmethod
    def find(self, name: str) -> Found | None:
        """Return the file with this name, or None if it does not exist."""

    @abstractmethod
    def names(self, directory: str = "") -> list[str]:
        """Return the sorted names in a directory, or an empty list if the directory does not exist."""

    @abstractmethod
    def open(self, name: str) -> pa.NativeFile:
        """Open a file for pyarrow. Raises FileNotFoundError if it does not exist."""

    @abstractmethod
    def each(self, function: Callable[[_One], _Other], items: Iterable[_One]) -> list[_Other]:
        """Call the function for each item, concurrently if that is faster. Return the results in order."""


def files_of(path: str) -> Files:
    """Return the files below a Hadoop path."""
    return _Near(Path(location(path))) if is_local(path) else _Far(path)


def is_object_store(path: str) -> bool:
    """Return whether a Hadoop path is in an object store that pyarrow can list."""
    return location(path).startswith(_OBJECT_STORES)


def arrow_directory(path: str) -> tuple[FileSystem, str]:
    """Return pyarrow's file system for a Hadoop path, and the path within that file system."""
    from pyarrow.fs import LocalFileSystem

    if is_local(path):
        return LocalFileSystem(), location(path)
    scheme, _, rest = location(path).partition("://")
    authority, slash, below = rest.partition("/")
    variables = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
    system, root = _system(scheme, authority, variables)
    return system, f"{root}{slash}{below}".rstrip("/")


def stored_below(path: str) -> list[Stored] | None:
    """Return every file below a directory in an object store; none if the directory does not exist.

    Returns None for other file systems, such as HDFS, because pyarrow might be unable to access them.
    """
    return _far_files(path) if is_object_store(path) else None


def each_file(path: str, on_trouble: Callable[[str, OSError], None]) -> Iterator[Stored]:
    """Yield every file below a directory, on any file system that this module can access, in no fixed order.

    Directories behind symbolic links are included, each once; pipes and sockets are not. For a local
    directory that cannot be listed, `on_trouble` gets its path relative to `path`, and the error. Raises
    OSError if another file system cannot be listed. A directory that does not exist has no files.
    """
    if is_local(path):
        yield from _local_files(Path(location(path)), on_trouble)
    else:
        yield from _far_files(path)


def _far_files(path: str) -> list[Stored]:
    from pyarrow.fs import FileSelector, FileType

    system, root = arrow_directory(path)
    found = system.get_file_info(FileSelector(root, allow_not_found=True, recursive=True))
    return [
        Stored(one.path[len(root) + 1 :], int(one.size), int(one.mtime_ns or 0) // 1_000_000)
        for one in found
        if one.type == FileType.File
    ]


def _local_files(root: Path, on_trouble: Callable[[str, OSError], None]) -> Iterator[Stored]:
    seen = set[tuple[int, int]]()

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            on_trouble(os.path.relpath(str(error.filename), root), error)

    for directory, below, names in os.walk(root, onerror=failed, followlinks=True):
        try:
            status = Path(directory).stat()
        except FileNotFoundError:
            continue
        if (status.st_dev, status.st_ino) in seen:
            below.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        for name in names:
            file = Path(directory, name)
            try:
                found = file.stat()
            except FileNotFoundError:
                continue
            except OSError as error:
                on_trouble(str(file.relative_to(root)), error)
                continue
            if stat.S_ISREG(found.st_mode):
                yield Stored(str(file.relative_to(root)), found.st_size, found.st_mtime_ns // 1_000_000)


class _Near(Files):
    """A local directory."""

    is_far = False

    def __init__(self, path: Path) -> None:
        self._path = path

    def exist(self) -> bool:
        return self._path.is_dir()

    def find(self, name: str) -> Found | None:
        path = self._path / name
        try:
            found = path.stat()
        except OSError:
            return None
        stamp = found.st_ino, found.st_mtime_ns
        return Found(stamp, found.st_mtime_ns // 1_000_000, lambda: path.read_text(encoding="utf-8"))

    def names(self, directory: str = "") -> list[str]:
        try:
            return sorted(os.listdir(self._path / directory))  # noqa: PTH208 - names, not paths
        except OSError:
            return []

    def open(self, name: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.OSFile(str(self._path / name))

    def each(self, function: Callable[[_One], _Other], items: Iterable[_One]) -> list[_Other]:
        return [function(one) for one in items]


class _Far(Files):
    """A directory on a remote file system; pyarrow connects to the file system on first access."""

    is_far = True

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def _root(self) -> tuple[FileSystem, str]:
        return arrow_directory(self._path)

    def exist(self) -> bool:
        return bool(self.names())

    def find(self, name: str) -> Found | None:
        system, root = self._root
        try:
            stream = system.open_input_file(f"{root}/{name}")
        except FileNotFoundError:
            return None
        said = {key: value.decode() for key, value in (stream.metadata() or {}).items()}
        if "Last-Modified" in said:
            modified_ms = int(datetime.fromisoformat(said["Last-Modified"]).timestamp() * 1000)
        else:
            modified_ms = int(system.get_file_info(f"{root}/{name}").mtime_ns or 0) // 1_000_000
        return Found((said.get("ETag"), modified_ms, stream.size()), modified_ms, lambda: _text(stream))

    def names(self, directory: str = "") -> list[str]:
        from pyarrow.fs import FileSelector

        system, root = self._root
        below = f"{root}/{directory}".rstrip("/")
        found = system.get_file_info(FileSelector(below, allow_not_found=True))
        return sorted(str(one.base_name) for one in found)

    def open(self, name: str) -> pa.NativeFile:
        import pyarrow as pa

        system, root = self._root
        stream = system.open_input_file(f"{root}/{name}")
        if stream.size() > _READ_WHOLE:
            return stream
        with stream:
            return pa.BufferReader(stream.read_buffer())

    def each(self, function: Callable[[_One], _Other], items: Iterable[_One]) -> list[_Other]:
        wanted = list(items)
        return list(_pool().map(function, wanted)) if len(wanted) > 1 else [function(one) for one in wanted]


def _text(stream: pa.NativeFile) -> str:
    with stream:
        return bytes(stream.read()).decode()


@lru_cache(maxsize=4)
def _system(scheme: str, authority: str, _variables: tuple[tuple[str, str], ...]) -> tuple[FileSystem, str]:
    """Return a cached client for a store, or a new client if the credentials (AWS_...) have changed."""
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    try:
        options = _ONE_REQUEST if scheme == "s3" else ""
        found: tuple[FileSystem, str] = FileSystem.from_uri(f"{scheme}://{authority}{options}")
    except pa.ArrowInvalid as error:  # an unknown scheme
        raise OSError(f"{scheme}://{authority} cannot be read without Spark: {error}") from error
    return found


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="lake files")
