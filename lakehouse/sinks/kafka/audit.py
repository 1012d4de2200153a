"""Audit exports to Kafka: for a read-committed consumer, every row's last message must equal gold.

Rows are compared at the gold version up to which the export has sent. Rows sent during the audit are in
flight and are skipped. The following cases are reported as notes, not as differences:

- a row is too large for the topic, even if the topic contains an older state of the row
- the topic's retention has removed messages
- the lake is a copy, and is older than the rows already sent
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.common.rows_as_text import differing
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.sinks.kafka.rows import progress_group, read_progress
from lakehouse.sinks.kafka.slices import last_sliced
from lakehouse.sinks.outgoing import message_of
from lakehouse.sinks.port import AuditedLead, Findings
from lakehouse.storage import tables
from lakehouse.storage.kafka.offsets import offset_ranges
from lakehouse.storage.spark.kafka_source import WholeTopic
from lakehouse.storage.spark.query_errors import are_files_gone
from lakehouse.storage.tables import Progress
from lakehouse.storage.tables.adoption import adoption_in
from lakehouse.streams.definition import MergedTable

_NOT_SENT = "in gold, but not in the topic"
_NOT_IN_GOLD = "in the topic, but not in gold"
_STATE = ["key", "value_sha256"]
_EXAMPLES = 20
GONE = "VACUUM has removed files of gold's change feed"


@dataclass(frozen=True)
class _Sent:
    """The gold rows that the export read, the rows that might have been sent since, and the topic's messages.

    `changes` reads gold's change feed as messages from version `first` on; earlier versions no longer exist.
    If a copy of the lake was `adopted` (UTC), rows sent before that time might have been resent.
    """

    gold: DataFrame
    moving: DataFrame
    messages: DataFrame
    changes: Callable[[], DataFrame]
    first: int
    note: str
    has_expired: bool
    adopted: datetime | None


def compare(audited: AuditedLead) -> Findings:
    """Compare a gold table with the topic it is exported to."""
    access = audited.exported.settings.kafka.access
    return WholeTopic(audited.exported.spark, access, audited.place).asked(
        lambda records: _compare(audited, records)
    )


def _compare(audited: AuditedLead, records: WholeTopic) -> Findings:
    topic, access = records.name, records.access
    group = progress_group(audited.exported.table.name, topic)
    progress = read_progress(access, group, topic) or audited.noted
    unknown = _unknown_progress(audited, progress, access)
    if unknown is not None:
        return Findings(0, 1, [({"topic": topic}, unknown)])
    older = _older_copy(audited, progress)
    if older is not None:
        return Findings(notes=[older])
    try:
        ranges = offset_ranges(access, topic)
        found = None if progress is None else _sent(audited, progress, ranges, records)
        if found is None:
            return Findings(notes=["nothing has been exported yet"])
        return _compared(audited, found)
    except (PySparkException, Py4JError) as error:
        if not are_files_gone(error):
            raise
        return Findings(not_compared=[f"not compared: {GONE}"])


def _compared(audited: AuditedLead, found: _Sent) -> Findings:
    table, gold = audited.exported.table, found.gold.persist()
    try:
        if table.export.identity is None:
            different = _by_count(gold, found.messages)
        else:
            different = _by_row(gold, found.messages, table.export.identity)
        names = ["key"] if table.export.identity is None else ["key", *table.export.identity]
        different, notes = different.join(found.moving, names, "left_anti"), [found.note]
        compared = gold.where("leaves").join(found.moving, names, "left_anti").count()
        if found.has_expired:
            expired = different.where(F.col("what") == _NOT_SENT).count()
            different = different.where(F.col("what") != _NOT_SENT)
            notes += [f"the messages for {expired:,} rows have expired in Kafka"] if expired else []
            compared -= expired
        unsent = audited.unsent()
        if unsent is not None:
            too_large = different.join(_states(unsent.rows), _STATE, "left_semi").count()
            different = different.join(_states(unsent.rows), _STATE, "left_anti")
            if too_large:
                notes.append(f"{too_large:,} rows are too large for the topic; see ops.unsent_rows")
            if unsent.has_removed:
                rows = different.where(F.col("what") == _NOT_IN_GOLD).count()
                different = different.where(F.col("what") != _NOT_IN_GOLD)
                notes.append(
                    f"{rows:,} rows are not in gold; {GONE} before the export read them; see ops.unsent_rows"
                )
        doubled, more = _left_twice(found)
        wrong = [different.drop("value_sha256"), *doubled]
        count, examples = differing(wrong, _EXAMPLES)
        return Findings(compared, count, examples, [*notes, *more])
    finally:
        gold.unpersist()


def _unknown_progress(audited: AuditedLead, progress: Progress | None, access: KafkaAccess) -> str | None:
    """Return the reason why the export's position is unknown, or None if it is known or nothing was sent."""
    if progress is not None:
        is_ours = progress.table == audited.exported.sent_as
        return None if is_ours else f"the rows sent are from a different table, with id {progress.table}"
    if any(end for _, end in offset_ranges(access, audited.place).values()):
        return "rows were sent, but neither Kafka nor the lake records the last version sent"
    return None


def _older_copy(audited: AuditedLead, progress: Progress | None) -> str | None:
    """Return a note if this lake is a copy, and the original has since sent later versions, or else None."""
    if audited.copied_from is None or progress is None:
        return None
    last = progress.position.version - 1
    end = tables.version_of(audited.exported.spark, audited.exported.path)
    if last <= end:
        return None
    of = audited.copied_from
    return f"not compared: {of} has sent version {last}, but the newest version of this copy is {end}"


def _sent(
    audited: AuditedLead,
    progress: Progress,
    ranges: Mapping[int, tuple[int, int]],
    records: WholeTopic,
) -> _Sent | None:
    exported = audited.exported
    spark, path, table = exported.spark, exported.path, exported.table
    version = audited.version_of(progress.position)
    if version is None:
        return None
    newest = tables.version_of(spark, path)
    reached = min(newest, _reached_by_now(audited, progress))
    messages = records.between(ranges).select(
        F.col("key").cast("string").alias("key"),
        F.col("value").cast("string").alias("value"),
        "partition",
        "offset",
        "timestamp",
    )
    gold = _as_messages(tables.read_version(spark, path, version), table)
    if reached > version:
        moving = _as_messages(tables.read_changes(spark, path, version + 1, reached), table)
    else:
        moving = gold.where(F.lit(False))
    names = ["key", *(table.export.identity or ())]
    waiting = newest - version
    note = f"version {version} of gold, {waiting} later commits wait for the export"
    expired = any(first for first, _ in ranges.values())

    first = tables.first_version(spark, path)

    def changes() -> DataFrame:
        return _as_messages(tables.read_changes(spark, path, first, newest), table)

    adoption = adoption_in(tables.transactions(spark, path))
    adopted = None if adoption is None else tables.from_micros(1000 * adoption.at_ms)
    return _Sent(gold, moving.select(*names).distinct(), messages, changes, first, note, expired, adopted)


def _reached_by_now(audited: AuditedLead, progress: Progress) -> int:
    """Return the latest gold version whose messages could already be in the topic.

    This includes rows sent since `progress`, and a large micro-batch that is still being sent in slices.
    """
    access, place, exported = audited.exported.settings.kafka.access, audited.place, audited.exported
    now = read_progress(access, progress_group(exported.table.name, place), place) or progress
    sliced = last_sliced(access, exported.table.name, place)
    ends = [now.position] if now.table == progress.table else []
    if sliced is not None and sliced.table == progress.table:
        ends.append(sliced.after)
    return max((end.version - 1 for end in ends if not end.is_beginning), default=0)


def _as_messages(rows: DataFrame, table: MergedTable) -> DataFrame:
    """Return gold rows as messages: key, value, identity fields, and `leaves` (whether the row is sent)."""
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
    """Return the rows whose last message in the topic differs from gold, with the digest of gold's message.

    Each tombstone key belongs to a single row.
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
        .when(left & (said != F.col("value")), F.concat(F.lit("the topic has "), said))
        .when(F.col("stands").isNull() & said.isNotNull(), F.lit(_NOT_IN_GOLD))
    )
    digest = F.when(left, F.sha2("value", 256)).otherwise("")
    return both.select(*names, what.alias("what"), digest.alias("value_sha256")).where("what IS NOT NULL")


def _by_count(gold: DataFrame, messages: DataFrame) -> DataFrame:
    """Return the messages that occur less often in the topic than in gold, with digests of their values."""
    rows = gold.where("leaves").groupBy("key", "value").agg(F.count(F.lit(1)).alias("rows"))
    both = rows.join(_counted(messages), ["key", "value"], "left")
    times = F.coalesce("times", F.lit(0))
    what = F.when(times == 0, F.lit(_NOT_SENT)).otherwise(
        F.format_string("%s: %d times in the topic, %d times in gold", "value", times, F.col("rows"))
    )
    digest = F.sha2("value", 256).alias("value_sha256")
    return both.where(times < F.col("rows")).select("key", what.alias("what"), digest)


def _states(noted: DataFrame) -> DataFrame:
    """Return the refused row states, with the columns by which a difference is matched."""
    return noted.select(*_STATE).distinct()


def _left_twice(sent: _Sent) -> tuple[list[DataFrame], list[str]]:
    """Return the messages that were sent more often than they occur in gold's change feed, and notes.

    If part of gold's change feed no longer exists, a note reports the number of such messages instead.
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
        return [], [f"{GONE}: it is unknown whether repeated messages in the topic are duplicates"]
    if not sent.first:
        return [doubled], []
    gone = f"gold's log begins at version {sent.first}"
    unknown = f"{gone}: it is unknown whether {count:,} repeated messages are duplicates"
    return [], [unknown] if count else []


def _doubled(changes: DataFrame, messages: DataFrame) -> DataFrame:
    """Return the messages that occur more often in the topic than in gold's change feed."""
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
