"""An archive of the classes that a start of Spark loads, made once at set-up.

    python -m lakehouse.sandbox.class_archive

A JVM reads, checks and links some twenty thousand classes before Spark does anything useful. From an archive
that it has made itself (class data sharing), it maps them into memory instead. A JVM of another version, or
with other jars, ignores the archive.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from lakehouse import tables
from lakehouse.catalog import ask, register
from lakehouse.files import sync
from lakehouse.layers import bronze
from lakehouse.runtime.runner import RunOptions, run
from lakehouse.runtime.triggers import AVAILABLE_NOW
from lakehouse.sandbox.loads import Load
from lakehouse.settings import Settings
from lakehouse.spark.internals import stop_with_jvm
from lakehouse.spark.jars import class_archive
from lakehouse.spark.session import build_session
from lakehouse.streams import BY_DEFAULT, load, read_settings
from lakehouse.tables import Lake

_EVENTS = 200


def make_archive(archive: Path) -> None:
    """Run silver and gold of every stream on a few samples, and archive the classes that this loaded.

    The archive gets its name once it is whole: of one that was cut off, a JVM dies.
    """
    draft = archive.with_suffix(".draft")
    with tempfile.TemporaryDirectory(prefix="lakehouse-classes-") as home:
        settings = read_settings().model_copy(update={"home": Path(home), "lake": f"{home}/lake"})
        options = {"spark.driver.defaultJavaOptions": f"-XX:ArchiveClassesAtExit={draft} -Xlog:cds=off"}
        spark = build_session(settings, "lakehouse classes", options=options)
        lake = Lake(spark, settings.lake)
        _land(lake, settings)
        run(lake, load(settings), ["silver", "gold"], settings, RunOptions(AVAILABLE_NOW))
        register(lake, load(settings))
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


if __name__ == "__main__":
    make_archive(class_archive())
