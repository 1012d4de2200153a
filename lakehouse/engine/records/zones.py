"""Check time zones before a run: Java has a time zone database of its own, and Spark computes with it."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.errors import DateTimeException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.common.errors import SettingsError
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables.specs import EPOCH
from lakehouse.streams.definition import Stream
from lakehouse.streams.window_lengths import Calendar


def check_zones(spark: SparkSession, stream: Stream) -> None:
    """Raise SettingsError for a time zone of a stream that Java does not know. UTC is always known.

    Declarations are checked with Python's database, which can be newer, and contains the machine's own files.
    """
    for zone, where in dict(_zones(stream)).items():
        time = local_frame(spark, [(EPOCH,)], StructType().add("time", "timestamp"))
        try:
            time.select(F.to_utc_timestamp("time", zone)).collect()  # without a job
        except DateTimeException:
            raise SettingsError(
                f"stream {stream.name}: {where} is {zone}, which Java's time zone database does not contain: "
                "use another name of this zone, or upgrade Java"
            ) from None


def _zones(stream: Stream) -> Iterator[tuple[str, str]]:
    """Yield each time zone that Spark computes with, and the place where it is declared."""
    for source in stream.sources:
        if source.contract.event_time_zone not in (None, "UTC"):
            yield source.contract.event_time_zone, f"the event_time_zone of topic {source.topic}"
    for table in stream.tables:
        if isinstance(table.window, Calendar) and table.window.zone != "UTC":
            yield table.window.zone, f"the zone of gold.{table.name}"
