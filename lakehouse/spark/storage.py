"""Small files and directories of the lake, on any file system."""

from __future__ import annotations

import contextlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakehouse.files import write_whole
from lakehouse.paths import local_path
from lakehouse.spark import internals

_LOCAL = "file:"
_CHANGE_FEED = "_change_data"


def exists(spark: SparkSession, path: str) -> bool:
    """Tell whether a file or directory exists."""
    return bool(_file_system(spark, path).exists(_path(spark, path)))


def modified_ms(spark: SparkSession, path: str) -> int | None:
    """Return when a file was last modified, in ms since the epoch; null if it does not exist."""
    here = on_this_machine(spark, path)
    if here is not None:
        try:
            return here.stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None
    system = _file_system(spark, path)
    if not system.exists(_path(spark, path)):
        return None
    return int(status(spark, path).getModificationTime())


def status(spark: SparkSession, path: str) -> Any:
    """Return Hadoop's own object of a file's status."""
    return _file_system(spark, path).getFileStatus(_path(spark, path))


def names(spark: SparkSession, directory: str) -> list[str]:
    """Return the names in a directory; none if it does not exist."""
    if not exists(spark, directory):
        return []
    system, path = _file_system(spark, directory), _path(spark, directory)
    # As one text, "{a,b}": a hundred files would be three calls each.
    text = internals.paths_in(spark, system.listStatus(path))
    return f",{text[1:-1]}".split(f",{system.makeQualified(path)}/")[1:]


def sizes(spark: SparkSession, directory: str) -> dict[str, int | None]:
    """Return the bytes of what is in a directory by its name; null for each if that is elsewhere."""
    here = on_this_machine(spark, directory)
    if here is None:
        return dict.fromkeys(names(spark, directory))
    return {file.name: file.stat().st_size for file in here.iterdir()} if here.exists() else {}


def usage(spark: SparkSession, directory: str) -> tuple[int, int]:
    """Return how many files lie below a directory, and their bytes."""
    found = _file_system(spark, directory).getContentSummary(_path(spark, directory))
    return int(found.getFileCount()), int(found.getLength())


def modified_here(spark: SparkSession, directory: str) -> dict[str, float] | None:
    """Return when each file below a directory was last modified, in seconds since the epoch, by its name.

    Names that begin with an underscore or a dot are left out, but for a table's change feed. Null if the
    directory is not on this machine's file system.
    """
    here = on_this_machine(spark, directory)
    if here is None:
        return None
    found: dict[str, float] = {}
    for root, directories, files in os.walk(here):
        directories[:] = [name for name in directories if name[0] not in "_." or name == _CHANGE_FEED]
        for name in files:
            if name[0] not in "_.":
                with contextlib.suppress(FileNotFoundError):  # somebody else has just removed it
                    found[name] = Path(root, name).stat().st_mtime
    return found


def read_text(spark: SparkSession, path: str) -> str:
    """Return a small file's text."""
    here = on_this_machine(spark, path)
    if here is not None and here.exists():
        return here.read_text(encoding="utf-8")
    stream = _file_system(spark, path).open(_path(spark, path))
    try:
        return internals.text_in(spark, stream)
    finally:
        stream.close()


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a file as Spark writes checkpoint files: as a whole, replacing an existing one."""
    here = on_this_machine(spark, path)
    if here is not None:
        _write_here(here, text)
    else:
        _write_there(spark, path, text)


def on_this_machine(spark: SparkSession, path: str) -> Path | None:
    """Return the path on this machine's file system, null if Hadoop has it elsewhere."""
    here = local_path(path)
    return here if path.startswith(_LOCAL) or _is_local_by_default(spark.sparkContext) else None


@lru_cache(maxsize=1)
def _is_local_by_default(context: SparkContext) -> bool:
    return internals.default_file_system(context).startswith(_LOCAL)


def _write_here(path: Path, text: str) -> None:
    """Write a file without Hadoop, which starts five processes (readlink, chmod) for each rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Hadoop's checksum of a former file of that name, which this one would be compared with.
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    write_whole(path, text)


def _write_there(spark: SparkSession, path: str, text: str) -> None:
    stream = internals.atomic_file(spark, _path(spark, path))
    try:
        stream.write(bytearray(text, "utf-8"))
    except BaseException:
        stream.cancel()
        raise
    stream.close()


def delete(spark: SparkSession, path: str) -> None:
    """Remove a file, or a directory with everything in it."""
    _file_system(spark, path).delete(_path(spark, path), True)  # noqa: FBT003


def _file_system(spark: SparkSession, path: str) -> Any:
    return internals.file_system(spark, _path(spark, path))


def _path(spark: SparkSession, path: str) -> Any:
    return internals.hadoop_path(spark, path)
