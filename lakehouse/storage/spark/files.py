"""Files and directories in the lake, on any file system.

In an object store, `read_text` takes two requests (on S3, one). `exists`, `write_text`, `modified_ms` (of an
existing file) and `names` (of up to a thousand files) take one request each.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakehouse.common.paths import is_on_s3, local_path
from lakehouse.common.state_files import copy_whole, drafted, write_whole
from lakehouse.storage.files import Stored, files_of, is_object_store, stored_below
from lakehouse.storage.spark import internals, objects

_LOCAL = "file:"
_CHANGE_FEED = "_change_data"


def exists(spark: SparkSession, path: str) -> bool:
    """Return whether a file exists."""
    here = on_this_machine(spark, path)
    if here is not None:
        return here.is_file()
    return bool(_file_system(spark, path).isFile(_path(spark, path)))


def modified_ms(spark: SparkSession, path: str) -> int | None:
    """Return when a file was last modified, in ms since the epoch, or None if it does not exist."""
    here = on_this_machine(spark, path)
    if here is not None:
        try:
            return here.stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None
    try:
        return int(status(spark, path).getModificationTime())
    except Py4JJavaError as error:
        if _is_missing(spark, error):
            return None
        raise


def modified_ms_of_both(spark: SparkSession, one: str, other: str) -> tuple[int | None, int | None]:
    """Return the modification times of two files (`modified_ms`). On S3, the requests run in parallel."""
    if is_on_s3(one):
        return objects.modified_ms_of_both(spark, one, other)
    return modified_ms(spark, one), modified_ms(spark, other)


def status(spark: SparkSession, path: str) -> Any:
    """Return Hadoop's status object for a file."""
    return _file_system(spark, path).getFileStatus(_path(spark, path))


def names(spark: SparkSession, directory: str) -> list[str]:
    """Return the names in a directory, or an empty list if the directory does not exist."""
    if on_this_machine(spark, directory) is None and is_object_store(directory):
        return files_of(directory).names()
    system, path = _file_system(spark, directory), _path(spark, directory)
    if not system.exists(path):
        return []
    # Passed as one string, "{a,b}", because separate paths would take three calls per file.
    text = objects.paths_in(spark, system.listStatus(path))
    return f",{text[1:-1]}".split(f",{system.makeQualified(path)}/")[1:]


def sizes(spark: SparkSession, directory: str) -> dict[str, int | None]:
    """Return the size in bytes of each file below a directory, keyed by relative path.

    The files are the same as for `modified`. On file systems where listing all files would be slow, the
    result contains only the names directly in the directory, each with the size None.
    """
    stored = _stored(spark, directory, _is_hidden)
    if stored is None:
        return dict.fromkeys(names(spark, directory))
    return {one.path: one.size_bytes for one in stored}


def usage(spark: SparkSession, directory: str) -> tuple[int, int]:
    """Return the number of files below a directory, and their total size in bytes."""
    stored = None if on_this_machine(spark, directory) is not None else stored_below(directory)
    if stored is not None:
        return len(stored), sum(one.size_bytes for one in stored)
    found = _file_system(spark, directory).getContentSummary(_path(spark, directory))
    return int(found.getFileCount()), int(found.getLength())


def modified(spark: SparkSession, directory: str) -> dict[str, float] | None:
    """Return the modification time of each file below a directory, in seconds since the epoch, by file name.

    Files and directories whose names begin with an underscore or a dot are omitted, except a table's change
    feed. Returns None if the directory is neither on this machine nor in an object store, because listing its
    files would be slow there.
    """
    stored = _stored(spark, directory, _is_hidden)
    if stored is None:
        return None
    found = ((one.path.split("/"), one.modified_ms / 1000) for one in stored)
    return {path[-1]: at for path, at in found if not any(map(_is_hidden, path))}


def _stored(
    spark: SparkSession, directory: str, is_skipped: Callable[[str], bool]
) -> Iterable[Stored] | None:
    """Return every file below a directory, or None if it is neither on this machine nor in an object store.

    On a local disk, files and directories for which `is_skipped` returns true are omitted.
    """
    here = on_this_machine(spark, directory)
    return stored_below(directory) if here is None else _stored_here(here, is_skipped)


def _stored_here(directory: Path, is_skipped: Callable[[str], bool]) -> Iterator[Stored]:
    for root, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if not is_skipped(name)]
        for file in (Path(root, name) for name in files if not is_skipped(name)):
            with contextlib.suppress(FileNotFoundError):  # another process has just removed the file
                found = file.stat()
                path = str(file.relative_to(directory))
                yield Stored(path, found.st_size, found.st_mtime_ns // 1_000_000)


def _is_hidden(name: str) -> bool:
    return name[0] in "_." and name != _CHANGE_FEED


def read_text(spark: SparkSession, path: str) -> str:
    """Return a small file's text."""
    here = on_this_machine(spark, path)
    if here is not None and here.exists():
        return here.read_text(encoding="utf-8")
    if is_on_s3(path):
        return objects.read_text(spark, path)
    stream = _file_system(spark, path).open(_path(spark, path))
    try:
        return objects.text_in(spark, stream)
    finally:
        stream.close()


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a file atomically, replacing any existing file."""
    here = on_this_machine(spark, path)
    if here is not None:
        _write_here(here, text)
    else:
        _write_there(spark, path, text)


def on_this_machine(spark: SparkSession, path: str) -> Path | None:
    """Return the path on this machine's file system, or None if Hadoop considers it to be elsewhere."""
    here = local_path(path)
    return here if path.startswith(_LOCAL) or _is_local_by_default(spark.sparkContext) else None


@lru_cache(maxsize=1)
def _is_local_by_default(context: SparkContext) -> bool:
    return internals.default_file_system(context).startswith(_LOCAL)


def _write_here(path: Path, text: str) -> None:
    """Write a local file without Hadoop, which would start five processes (readlink, chmod) per rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Remove an earlier file's Hadoop checksum. Otherwise, the new file would be checked against it.
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    write_whole(path, text)


def _write_there(spark: SparkSession, path: str, text: str) -> None:
    """Write a file as Spark writes checkpoint files; on S3, with one PUT (ObjectFileManager.scala)."""
    stream = objects.atomic_file(spark, _path(spark, path))
    try:
        stream.write(bytearray(text, "utf-8"))
    except BaseException:
        stream.cancel()
        raise
    stream.close()


def _is_missing(spark: SparkSession, error: Py4JJavaError) -> bool:
    """Return whether a Hadoop error means that a file or directory does not exist."""
    return internals.is_a(spark, error.java_exception, "java.io.FileNotFoundException")


def delete(spark: SparkSession, path: str) -> None:
    """Remove a file, or a directory with everything in it."""
    _file_system(spark, path).delete(_path(spark, path), True)  # noqa: FBT003


def lying(spark: SparkSession, directory: str) -> dict[str, int]:
    """Return the size in bytes of every file below a directory, keyed by relative path.

    The result is empty if the directory does not exist. Files whose names begin with a dot (Hadoop's checksum
    and temporary files) are omitted.
    """
    stored = _stored(spark, directory, lambda _name: False)
    if stored is not None:
        return {one.path: one.size_bytes for one in stored if not one.path.rpartition("/")[2].startswith(".")}
    system, path = _file_system(spark, directory), _path(spark, directory)
    if not system.exists(path):
        return {}
    beginning, found = f"{system.makeQualified(path)}/", {}
    files = system.listFiles(path, True)  # noqa: FBT003 - recursively
    while files.hasNext():
        file = files.next()
        name = str(file.getPath()).removeprefix(beginning)
        if not name.rpartition("/")[2].startswith("."):
            found[name] = int(file.getLen())
    return found


def copy(spark: SparkSession, source: str, target: str) -> bool:
    """Copy a file byte by byte, replacing an existing file, and return whether the source exists.

    On this machine's disks and in an object store, the copy is atomic and survives a power failure. Where
    possible, the copy keeps the original's modification time.
    """
    here, there = on_this_machine(spark, source), on_this_machine(spark, target)
    try:
        if here is not None and there is not None:
            copy_whole(here, there)
        elif there is not None:
            _copy_here(spark, source, there)
        else:
            _copy_there(spark, source, target)
    except (OSError, Py4JJavaError):
        if exists(spark, source):
            raise
        return False
    return True


def _copy_here(spark: SparkSession, source: str, target: Path) -> None:
    """Copy a file from another file system, without writing Hadoop's checksum next to it."""
    system, path = _file_system(spark, source), _path(spark, source)
    stays, without_checksum = False, True
    with drafted(target) as draft:
        system.copyToLocalFile(stays, path, _path(spark, str(draft)), without_checksum)
        at_ns = 1_000_000 * int(system.getFileStatus(path).getModificationTime())
        os.utime(draft, ns=(at_ns, at_ns))


def _copy_there(spark: SparkSession, source: str, target: str) -> None:
    paths = _path(spark, source), _path(spark, target)
    systems = tuple(objects.file_system(spark, path) for path in paths)
    objects.copy_file(spark, systems, paths)
    modified = systems[0].getFileStatus(paths[0]).getModificationTime()
    systems[1].setTimes(paths[1], modified, -1)


def _file_system(spark: SparkSession, path: str) -> Any:
    return objects.file_system(spark, _path(spark, path))


def _path(spark: SparkSession, path: str) -> Any:
    return objects.hadoop_path(spark, path)
