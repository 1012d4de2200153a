"""Archive the classes that Spark loads at startup. This runs after the first demo, or before tests.

    python -m lakehouse.dev.class_archive MADE_FOR

A JVM reads, checks and links about twenty thousand classes before Spark does anything useful. If an earlier
run has archived the classes (class data sharing), the JVM maps them into memory instead. A JVM with a
different version or different jars ignores the archive. MADE_FOR is any text that identifies the JVM and the
jars (scripts/class_archive.sh).
"""

from __future__ import annotations

import fcntl
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from lakehouse.common.state_files import sync
from lakehouse.dev.samples.loads import Load
from lakehouse.engine.layers import bronze
from lakehouse.engine.runtime.runner import RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.catalog.spark_sql import ask, define_views
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.spark.internals import stop_with_jvm
from lakehouse.storage.spark.jars import class_archive
from lakehouse.storage.spark.session import build_session
from lakehouse.storage.tables import Lake
from lakehouse.streams.registry import BY_DEFAULT, load, read_settings

_EVENTS = 200


def make_archive(archive: Path) -> None:
    """Run every stream's silver and gold on a few samples, and archive the classes that they load.

    The archive is renamed into place when it is complete, because a JVM crashes on a truncated archive.
    """
    draft = archive.with_suffix(".draft")
    with tempfile.TemporaryDirectory(prefix="lakehouse-classes-") as home:
        settings = read_settings().changed({"home": Path(home), "lake": f"{home}/lake"})
        options = {"spark.driver.defaultJavaOptions": f"-XX:ArchiveClassesAtExit={draft} -Xlog:cds=off"}
        spark = build_session(settings, "lakehouse classes", options=options)
        lake = Lake(spark, settings.lake)
        _land(lake, settings)
        run(lake, load(settings), ["silver", "gold"], settings, RunOptions(AVAILABLE_NOW))
        define_views(lake, load(settings))
        ask(spark, "SELECT count(*) FROM gold.metrics_1m", limit=1)
        stop_with_jvm(spark)
    sync(draft)
    draft.replace(archive)


def _land(lake: Lake, settings: Settings) -> None:
    now = datetime.now(UTC)
    for stream in BY_DEFAULT:
        samples = list(Load(stream.name, _EVENTS, malformed=0.05).samples(settings))
        for place, source in enumerate(stream.sources):
            path = lake.ensure(bronze.spec(source))
            rows = [
                (sample.key, sample.value, None, source.topic, 0, number, now, 0, now, None)
                for number, sample in enumerate(samples)
                if sample.source == place
            ]
            frame = lake.spark.createDataFrame(rows, bronze.SCHEMA).coalesce(1)
            tables.append(frame, path)


def make_archive_once(archive: Path, made_for: str) -> None:
    """Create the archive unless one exists for this MADE_FOR. Wait if another process is creating it."""
    note = archive.with_name(f"{archive.name}.for")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with archive.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.exists() and note.exists() and note.read_text(encoding="utf-8").strip() == made_for:
            return
        archive.unlink(missing_ok=True)
        make_archive(archive)
        note.write_text(f"{made_for}\n", encoding="utf-8")


if __name__ == "__main__":
    make_archive_once(class_archive(), sys.argv[1])
