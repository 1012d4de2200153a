"""Maintain a table: merge small files, and remove old log entries and the files of old versions.

No operation changes a row. All of them use Delta's own commands: OPTIMIZE with liquid clustering, VACUUM, and
log cleanup. Their cost depends on how much has changed since the last run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.storage.spark import files as storage
from lakehouse.storage.spark import internals
from lakehouse.storage.tables import delta_internals as delta
from lakehouse.storage.tables import lasting
from lakehouse.storage.tables.data_files import files_of
from lakehouse.storage.tables.entries import LOG
from lakehouse.storage.tables.log import noted_files, snapshot
from lakehouse.storage.tables.schema_evolution import alter

_PREFIX = "spark.databricks.delta"
_CUBES_FILES = 32  # at most this many files are clustered together
_FEW_SMALL_FILES = 8  # up to this many are not merged, because merging costs more than reading them
_LEAST_BYTES = 1 << 20
_HOUR_S = 3600
_TASKS = "2"  # tasks for listing directories in VACUUM; the default is ten thousand


@dataclass(frozen=True)
class Size:
    """A number of files and their total bytes."""

    files: int
    bytes: int


def current_size(spark: SparkSession, path: str) -> Size:
    """Return the size of the table's newest version."""
    return Size(*delta.files_and_bytes(snapshot(spark, path)))


def stored_size(spark: SparkSession, path: str) -> Size:
    """Return the size of all files below the table's directory: all versions, the change feed and the log."""
    return Size(*storage.usage(spark, path))


def small_files(spark: SparkSession, path: str, target_bytes: int) -> Size:
    """Return the number and total bytes of the newest version's files that are below half the target."""
    found, limit = snapshot(spark, path), target_bytes // 2
    noted = noted_files(found)
    if noted is not None:
        sizes = [size for file in noted if (size := delta.size_of(file)) < limit]
        return Size(len(sizes), sum(sizes))
    small = delta.all_files(spark, found).where(F.col("size") < limit)
    files, total = small.agg(F.count("*"), F.sum("size")).first() or (0, 0)
    return Size(files, total or 0)


def bytes_of_rows(spark: SparkSession, path: str, rows: int) -> int:
    """Return the expected size in bytes of this number of the table's rows, but at least 1 MiB."""
    files = files_of(spark, path, snapshot(spark, path)).by_name.values()
    counted = [(file.size_bytes, file.rows) for file in files if file.rows]
    there = sum(count for _, count in counted)
    return max(_LEAST_BYTES, sum(size for size, _ in counted) * rows // there) if there else _LEAST_BYTES


def has_many_small_files(small: Size) -> bool:
    """Return whether there are so many small files that `optimize` is worthwhile."""
    return small.files > _FEW_SMALL_FILES


def optimize(spark: SparkSession, path: str, cluster_by: str | None, target_bytes: int) -> bool:
    """Merge small files into files of about the target size, and return whether any were merged.

    With `cluster_by`, rows are clustered by that column, so each file contains a narrow range of its values.
    Files that are already clustered remain unchanged unless there are few of them, so the cost depends on how
    much was written since the last run. Raises one of Delta's conflicts if another writer has rewritten the
    same files in the meantime (`lakehouse.storage.tables.retry_on_conflict`).
    """
    own = _session(
        spark,
        {
            "optimize.maxFileSize": target_bytes,
            "optimize.minFileSize": target_bytes // 2,
            "optimize.clustering.mergeStrategy.minCubeSize.threshold": target_bytes,
            "optimize.clustering.mergeStrategy.minCubeSize.targetCubeSize": _CUBES_FILES * target_bytes,
        },
    )
    if cluster_by is not None:
        _ensure_clustered(own, path, cluster_by)
    metrics = own.sql(f"OPTIMIZE {_named(path)}").select("metrics.numFilesRemoved").first()
    return bool(metrics and metrics.numFilesRemoved)


def _ensure_clustered(spark: SparkSession, path: str, column: str) -> None:
    if column not in (_clustered_by(spark, path) or ()):
        alter(spark, path, f"CLUSTER BY (`{column}`)")


def _clustered_by(spark: SparkSession, path: str) -> list[str]:
    row = spark.sql(f"DESCRIBE DETAIL {_named(path)}").select("clusteringColumns").first()
    return list(row.clusteringColumns or ()) if row else []


def vacuum(spark: SparkSession, path: str, keep: timedelta, *, dry_run: bool) -> int:
    """Remove files that no version within `keep` needs, and return how many. `dry_run` only counts the files.

    Afterwards, older versions and their change feed can no longer be read. A rerun removes nothing. VACUUM
    takes seconds even if it finds nothing, so it is skipped if no file can be old enough to remove.
    """
    hours = max(0, int(keep / timedelta(hours=1)))
    if not _may_find_files(spark, path, before=time.time() - hours * _HOUR_S):
        return 0
    own = _session(
        spark,
        {
            "retentionDurationCheck.enabled": "false",
            # By default, VACUUM ignores RETAIN and uses the retention in the table's properties: a week.
            "vacuum.retentionWindowIgnore.enabled": "false",
            "vacuum.logging.enabled": "false",
        },
    )
    own.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", _TASKS)
    before = _data_files(spark, path)
    with internals.without_console(spark):
        found = own.sql(f"VACUUM {_named(path)} RETAIN {hours} HOURS{' DRY RUN' if dry_run else ''}")
        count = found.count() if dry_run else 0
    return count if dry_run else before - _data_files(spark, path)


def _may_find_files(spark: SparkSession, path: str, *, before: float) -> bool:
    """Return whether there might be an unused file older than `before` (seconds since the epoch)."""
    modified = storage.modified(spark, path)
    if modified is None:
        return True
    old = {name for name, at in modified.items() if at < before}
    noted = noted_files(snapshot(spark, path)) if old else []
    return noted is None or not old <= {delta.path_of(file).rsplit("/", 1)[-1] for file in noted}


def _data_files(spark: SparkSession, path: str) -> int:
    """Return the number of files below the table's directory, not counting its log."""
    return stored_size(spark, path).files - stored_size(spark, f"{path}/{LOG}").files


def clean_log(spark: SparkSession, path: str, keep: timedelta) -> None:
    """Remove commits that are older than `keep` and precede a checkpoint in the log.

    Delta's automatic cleanup removes only whole days of commits, and only after a month.
    """
    if (here := storage.on_this_machine(spark, path)) is not None:
        lasting.keep_checkpoints(here)
    delta.clean_up(spark, delta.log_of(spark, path), snapshot(spark, path), keep)


def _session(spark: SparkSession, values: dict[str, Any]) -> SparkSession:
    """Return a new session with these Delta settings. Other sessions keep their settings."""
    own = spark.newSession()
    for name, value in values.items():
        own.conf.set(f"{_PREFIX}.{name}", str(value))
    return own


def _named(path: str) -> str:
    location = path.replace("`", "``")
    return f"delta.`{location}`"
