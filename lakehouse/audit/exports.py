"""Exports: in the topics, read committed, the last message of every row equals gold.

Rows that gold has changed since the version that the export had reached are in flight and left out. A row
that is too large for the topic is a note, not a difference, whatever older state of it the topic has. So is
what cannot be compared because VACUUM has removed files, or because the lake is a copy that is older than
what was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse import tables
from lakehouse.audit.report import Check, Compared, Difference
from lakehouse.audit.whole_topic import WholeTopic
from lakehouse.copies import marker as markers
from lakehouse.kafka.access import KafkaAccess
from lakehouse.kafka.offsets import offset_ranges
from lakehouse.ops import unsent_rows
from lakehouse.progress import cuts, sent
from lakehouse.sinks import progress_group, read_progress
from lakehouse.sinks.outgoing import message_of
from lakehouse.spark.query_errors import are_files_gone
from lakehouse.stream import MergedTable, Stream
from lakehouse.tables import Lake, Position, Progress
from lakehouse.tables.adoption import adoption_in

_NOT_SENT = "in gold, but not in the topic"
_NOT_IN_GOLD = "in the topic, but not in gold"
_STATE = ["key", "value_sha256"]
GONE = "VACUUM has removed files of gold's change feed"


@dataclass(frozen=True)
class _Sent:
    """Gold as the export had it, rows changed since, and the messages sent by then.

    `changes` reads gold's change feed, as messages, from version `first` on; earlier versions are gone. Rows
    that were sent before the lake was `adopted` (UTC) may have been sent again then.
    """

    gold: DataFrame
    moving: DataFrame
    messages: DataFrame
    changes: Callable[[], DataFrame]
    first: int
    note: str
    has_expired: bool
    adopted: datetime | None


def check_topic(
    lake: Lake, stream: Stream, table: MergedTable, topic: str, access: KafkaAccess
) -> list[Check]:
    """Compare a gold table with the topic that it is exported to."""
    return WholeTopic(lake.spark, access, topic).asked(lambda records: _check(lake, stream, table, records))


def _check(lake: Lake, stream: Stream, table: MergedTable, records: WholeTopic) -> list[Check]:
    topic, access = records.name, records.access
    subject = Compared(stream.name, "exported", f"gold.{table.name} → {topic}")
    group = progress_group(table.name, topic)
    progress = read_progress(access, group, topic)
    progress = progress or sent.noted(lake.spark, lake.path("gold", table.name), topic)
    unknown = _unknown_progress(lake, table, topic, progress, access)
    if unknown is not None:
        return [subject.found(0, 1, [Difference({"topic": topic}, unknown)])]
    older = _older_copy(lake, table, progress)
    if older is not None:
        return [subject.compared(0, notes=[older])]
    try:
        ranges = offset_ranges(access, topic)
        found = None if progress is None else _sent(lake, table, progress.position, ranges, records)
        if found is None:
            return [subject.compared(0, notes=["nothing has been exported yet"])]
        return [_compared(lake, table, topic, found, subject)]
    except (PySparkException, Py4JError) as error:
        if not are_files_gone(error):
            raise
        return [subject.compared(0, notes=[f"not compared: {GONE}"])]


def _compared(lake: Lake, table: MergedTable, topic: str, found: _Sent, subject: Compared) -> Check:
    gold = found.gold.persist()
    try:
        if table.export.identity is None:
            different = _by_count(gold, found.messages)
        else:
            different = _by_row(gold, found.messages, table.export.identity)
        if found.has_expired:
            different = different.where(F.col("what") != _NOT_SENT)
        names = ["key"] if table.export.identity is None else ["key", *table.export.identity]
        different, notes = different.join(found.moving, names, "left_anti"), [found.note]
        noted = unsent_rows.read(lake, table.name, topic)
        if noted is not None:
            too_large = different.join(_states(noted), _STATE, "left_semi").count()
            different = different.join(_states(noted), _STATE, "left_anti")
            if too_large:
                notes.append(f"{too_large:,} rows are too large for the topic, see ops.unsent_rows")
            if unsent_rows.are_removed(noted):
                rows = different.where(F.col("what") == _NOT_IN_GOLD).count()
                different = different.where(F.col("what") != _NOT_IN_GOLD)
                notes.append(f"{rows:,} rows are not in gold; {GONE} before it was sent, see ops.unsent_rows")
        doubled, more = _left_twice(found)
        wrong = [different.drop("value_sha256"), *doubled]
        return subject.compared(gold.where("leaves").count(), wrong, [*notes, *more])
    finally:
        gold.unpersist()


def exported_version(lake: Lake, table: MergedTable, position: Position | None) -> int | None:
    """Return the last version that the export has sent completely, up to a position; null for none."""
    if position is None or position.is_beginning or position.version == 0:
        return None
    return cuts.with_same_rows(lake.spark, lake.path("gold", table.name), position.version - 1)


def _unknown_progress(
    lake: Lake, table: MergedTable, topic: str, progress: Progress | None, access: KafkaAccess
) -> str | None:
    """Return why it is unknown what has been sent, null if it is known or nothing has been sent."""
    if progress is not None:
        is_ours = progress.table == tables.sent_as(lake.spark, lake.path("gold", table.name))
        return None if is_ours else f"rows were sent of another table, with id {progress.table}"
    if any(end for _, end in offset_ranges(access, topic).values()):
        return "rows were sent, but neither Kafka nor the lake knows up to which version"
    return None


def _older_copy(lake: Lake, table: MergedTable, progress: Progress | None) -> str | None:
    """Return what there is to say of a copy of a lake that has sent more since; null for any other lake."""
    marker = markers.read(lake.spark, lake.root)
    if marker is None or progress is None:
        return None
    last, end = progress.position.version - 1, tables.version_of(lake.spark, lake.path("gold", table.name))
    if last <= end:
        return None
    return f"not compared: {marker.of} has sent version {last}, and this copy of it ends at version {end}"


def _sent(
    lake: Lake,
    table: MergedTable,
    position: Position,
    ranges: Mapping[int, tuple[int, int]],
    records: WholeTopic,
) -> _Sent | None:
    spark, path = lake.spark, lake.path("gold", table.name)
    version = exported_version(lake, table, position)
    if version is None:
        return None
    # Messages up to here came from versions that the table has by now.
    newest = tables.version_of(spark, path)
    messages = records.between(ranges).select(
        F.col("key").cast("string").alias("key"),
        F.col("value").cast("string").alias("value"),
        "partition",
        "offset",
        "timestamp",
    )
    gold = _as_messages(tables.read_version(spark, path, version), table)
    if newest > version:
        moving = _as_messages(tables.read_changes(spark, path, version + 1, newest), table)
    else:
        moving = gold.where(F.lit(False))
    names = ["key", *(table.export.identity or ())]
    note = f"version {version} of gold, {newest - version} commits in flight"
    expired = any(first for first, _ in ranges.values())

    first = tables.first_version(spark, path)

    def changes() -> DataFrame:
        return _as_messages(tables.read_changes(spark, path, first, newest), table)

    adoption = adoption_in(tables.properties_of(tables.snapshot(spark, path)))
    adopted = None if adoption is None else tables.from_micros(1000 * adoption.at_ms)
    return _Sent(gold, moving.select(*names).distinct(), messages, changes, first, note, expired, adopted)


def _as_messages(rows: DataFrame, table: MergedTable) -> DataFrame:
    """Return gold rows as they are sent: key, value, the fields that identify the row, and `leaves`."""
    export = table.export
    kind = ["_change_type"] if "_change_type" in rows.columns else []
    messages = rows.select(
        export.key().alias("key"),
        message_of(table).alias("value"),
        export.export_when().alias("leaves"),
        *kind,
    )
    return messages.withColumns(_fields(export.identity or ()))


def _fields(identity: tuple[str, ...]) -> dict[str, Column]:
    return {name: F.get_json_object("value", f"$.{name}") for name in identity}


def _by_row(gold: DataFrame, messages: DataFrame, identity: tuple[str, ...]) -> DataFrame:
    """Return the rows whose last message differs from gold, and the digest of that message.

    A tombstone has a key that is the row's alone.
    """
    names = ["key", *identity]
    place = F.struct("partition", "offset")
    last = (
        messages.withColumns(_fields(identity))
        .groupBy(*names)
        .agg(F.max_by(F.struct(F.col("value")), place).alias("last"), F.max(place).alias("at"))
    )
    gone = (
        messages.where("value IS NULL")
        .groupBy(F.col("key").alias("own"))
        .agg(F.max(place).alias("withdrawn"))
    )
    both = gold.withColumn("stands", F.lit(True)).join(last, names, "full_outer")
    both = both.withColumn("own", F.concat_ws(":", *names)).join(gone, "own", "left")
    left = F.coalesce("leaves", F.lit(False))
    said = F.when(
        left | F.col("withdrawn").isNull() | (F.col("withdrawn") < F.col("at")), F.col("last.value")
    )
    what = (
        F.when(left & said.isNull(), F.lit(_NOT_SENT))
        .when(left & (said != F.col("value")), F.concat(F.lit("the topic says "), said))
        .when(F.col("stands").isNull() & said.isNotNull(), F.lit(_NOT_IN_GOLD))
    )
    digest = F.when(left, F.sha2("value", 256)).otherwise("")
    return both.select(*names, what.alias("what"), digest.alias("value_sha256")).where("what IS NOT NULL")


def _by_count(gold: DataFrame, messages: DataFrame) -> DataFrame:
    """Return messages that are in the topic less often than in gold, and the digests of their values."""
    rows = gold.where("leaves").groupBy("key", "value").agg(F.count(F.lit(1)).alias("rows"))
    both = rows.join(_counted(messages), ["key", "value"], "left")
    times = F.coalesce("times", F.lit(0))
    what = F.when(times == 0, F.lit(_NOT_SENT)).otherwise(
        F.format_string("%s: %d times in the topic, %d times in gold", "value", times, F.col("rows"))
    )
    digest = F.sha2("value", 256).alias("value_sha256")
    return both.where(times < F.col("rows")).select("key", what.alias("what"), digest)


def _states(noted: DataFrame) -> DataFrame:
    """Return the states of rows that a topic did not accept, in the form of differences."""
    return noted.select(*_STATE).distinct()


def _left_twice(sent: _Sent) -> tuple[list[DataFrame], list[str]]:
    """Return messages that were sent more often than gold has said.

    If part of gold's history is gone, they can only be a note.
    """
    messages = sent.messages
    if sent.adopted is not None:
        messages = messages.where(F.col("timestamp") >= F.lit(sent.adopted))
    if _counted(messages).where("times > 1").isEmpty():
        return [], []
    try:
        doubled = _doubled(sent.changes(), messages)
        count = doubled.count()
    except (PySparkException, Py4JError) as error:
        if not are_files_gone(error):
            raise
        return [], [f"{GONE}: it is unknown whether messages that are in the topic twice were sent twice"]
    if not sent.first:
        return [doubled], []
    gone = f"gold's log begins at version {sent.first}"
    unknown = f"{gone}: whether {count:,} messages were sent more often than gold said is unknown"
    return [], [unknown] if count else []


def _doubled(changes: DataFrame, messages: DataFrame) -> DataFrame:
    """Return messages that are in the topic more often than gold's change feed has said."""
    said = changes.where(F.col("leaves") & F.col("_change_type").isin("insert", "update_postimage"))
    both = (
        _counted(messages)
        .where("times > 1")
        .join(_counted(said).withColumnRenamed("times", "said"), ["key", "value"], "left")
    )
    ever = F.coalesce("said", F.lit(0))
    what = F.format_string("%s: %d times in the topic, %d times in the feed", "value", "times", ever)
    return both.where(F.col("times") > ever).select("key", what.alias("what"))


def _counted(messages: DataFrame) -> DataFrame:
    return messages.where("value IS NOT NULL").groupBy("key", "value").agg(F.count(F.lit(1)).alias("times"))
