"""The effects of a power failure: files that were not yet on the disk are empty or truncated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from lakehouse.common.memory import forget

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut off": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
}


def damage(file: Path, how: str, *, hadoop_knows: bool = False) -> None:
    """Damage a file; Hadoop's checksum for it is also lost, unless it survived."""
    file.write_bytes(DAMAGES[how](file.read_bytes()))
    if not hadoop_knows:
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def newest_commit(path: str | Path) -> Path:
    """Return the file of a table's newest commit."""
    return max(Path(path, "_delta_log").glob("*.json"))


def file_of(path: str | Path, commit: Path, kind: str = "add") -> Path:
    """Return the data file that a commit adds to the table, or to its change feed (`cdc`)."""
    actions = (json.loads(line) for line in commit.read_text().splitlines())
    return Path(path, next(action[kind]["path"] for action in actions if kind in action))


def as_in_a_new_process(spark: SparkSession) -> None:
    """Clear what Delta and the driver have cached about all tables."""
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    forget()
