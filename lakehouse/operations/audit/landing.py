"""Check `landed`: every record in Kafka up to bronze's position is in bronze exactly once.

Records are compared in key, value, headers and timestamp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from lakehouse.engine.ops_tables import retained
from lakehouse.engine.ops_tables.data_losses import DATA_LOSSES
from lakehouse.engine.progress.positions import begun_in, offsets_in, sources_in
from lakehouse.operations.audit.records import landed_since, part_of
from lakehouse.operations.audit.report import EXAMPLES, Check, Compared, Difference
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage import tables
from lakehouse.storage.kafka.offsets import offset_ranges
from lakehouse.storage.spark.kafka_source import WholeTopic
from lakehouse.storage.spark.offset_ranges import OffsetRange, ranges_of
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Contract, Source, Stream

Ranges = Mapping[int, tuple[int, int]]


def check_landing(
    lake: Lake,
    stream: Stream,
    source: Source,
    topic: str,
    access: KafkaAccess,
    *,
    since: datetime | None = None,
) -> list[Check]:
    """Compare the source's topic with bronze, record by record.

    With `since` (UTC), each partition is compared from the first offset that landed then or later.
    """
    return WholeTopic(lake.spark, access, topic).asked(
        lambda records: _check(lake, stream, source, records, offset_ranges(access, topic), since=since)
    )


def _check(
    lake: Lake,
    stream: Stream,
    source: Source,
    records: WholeTopic,
    ranges: Ranges,
    *,
    since: datetime | None,
) -> list[Check]:
    topic = records.name
    query = f"bronze.{source.table}"
    subject = Compared(stream.name, "landed", f"{topic} → {query}{part_of(since)}")
    noted = tables.transactions(lake.spark, lake.path("bronze", source.table))
    read = _read_up_to(noted, query, topic)
    beyond = [
        Difference(
            {"topic": topic, "partition": partition},
            f"bronze has read up to offset {end}, but the topic ends at {ranges.get(partition, (0, 0))[1]}",
        )
        for partition, end in read.items()
        if end > ranges.get(partition, (0, 0))[1]
    ]
    if beyond:
        return [subject.found(0, len(beyond), beyond)]
    taken = retained.taken_of(lake, "bronze", source.table)
    gone = {one.partition: one.last + 1 for one in taken.gone if one.topic == topic}
    begun = begun_in(noted, query, topic)
    bronze = taken.filter_kept(lake.read("bronze", source.table)).where(landed_since(since))
    of_topic = bronze.where(F.col("topic") == topic)
    part = {} if since is None else read | {one.partition: one.first for one in ranges_of(of_topic)}
    firsts = {
        n: max(first, gone.get(n, 0), begun.get(n, 0), part.get(n, 0)) for n, (first, _) in ranges.items()
    }
    due = {partition: (first, max(first, read.get(partition, 0))) for partition, first in firsts.items()}
    landed = _counted(of_topic)
    losses = lake.read_or_empty(DATA_LOSSES).where(F.col("topic") == topic)
    lost = losses.orderBy("partition", "first_offset").collect()
    left_out = [
        f"{topic}-{partition}: offsets before {first} were skipped (the source's key `start`)"
        for partition, first in sorted(begun.items())
        if first
    ]
    explained = [*left_out, *taken.notes(), *map(_said, lost), *_unknown(bronze, source)]
    if not due:
        return [subject.compared(landed.count(), notes=explained)]
    of_lost = [OffsetRange(topic, row.partition, row.first_offset, row.last_offset) for row in lost]
    sent = records.between(due, of_lost).select("partition", "offset", _content().alias("sent"))
    both = sent.join(landed, ["partition", "offset"], "full_outer").persist()
    try:
        what = (
            F.when(F.col("times").isNull(), F.lit("in Kafka, but not in bronze"))
            .when(F.col("times") > 1, F.concat(F.col("times").cast("string"), F.lit(" times in bronze")))
            .when(F.col("sent") != F.col("landed"), F.lit("different in bronze and Kafka"))
        )
        different = both.select(F.lit(topic).alias("topic"), "partition", "offset", what.alias("what"))
        notes = [*_notes(both, due, topic, of_lost), *explained]
        return [subject.compared(landed.count(), [different.where("what IS NOT NULL")], notes)]
    finally:
        both.unpersist()


def _read_up_to(noted: Mapping[str, int], query: str, topic: str) -> dict[int, int]:
    """Return bronze's position in each partition: the offset after the last landed record."""
    read = dict[int, int]()
    for source in {one.rpartition("/")[0] for one in sources_in(noted, query)}:
        if source.rpartition(":")[0] == topic:
            read |= offsets_in(noted, query, source)
    return read


def _content() -> Column:
    headers = F.transform("headers", lambda one: F.struct(one["key"], _hex(one["value"])))
    times = F.struct(F.unix_micros("timestamp"), "timestamp_type", "raw_timestamp")
    return F.xxhash64(_hex("key"), _hex("value"), F.coalesce(F.to_json(headers), F.lit("[]")), times)


def _hex(bytes_: Column | str) -> Column:
    return F.coalesce(F.hex(bytes_), F.lit("null"))


def _counted(bronze: DataFrame) -> DataFrame:
    content = F.first(_content()).alias("landed")
    return bronze.groupBy("partition", "offset").agg(F.count(F.lit(1)).alias("times"), content)


def _notes(both: DataFrame, due: Ranges, topic: str, lost: Sequence[OffsetRange]) -> list[str]:
    """Return notes about offsets without a record, and about rows whose record is no longer in Kafka."""
    counts = both.groupBy("partition").agg(
        F.count("sent").alias("sent"),
        *(
            F.count_if(F.col("sent").isNull() & _in_range(due, side)).alias(side)
            for side in ("expired", "compacted")
        ),
    )
    by_partition = {row.partition: row for row in counts.collect()}
    notes = []
    for partition, (first, end) in sorted(due.items()):
        row = by_partition.get(partition)
        compacted = row.compacted if row else 0
        skipped = sum(
            max(0, min(one.last + 1, end) - max(one.first, first))
            for one in lost
            if one.partition == partition
        )
        empty = end - first - (row.sent if row else 0) - compacted - skipped
        where = f"{topic}-{partition}"
        if row and row.expired:
            notes.append(
                f"{where}: {row.expired:,} rows have offsets before {first}, which have expired in Kafka"
            )
        if compacted:
            notes.append(f"{where}: {compacted:,} rows have records that compaction has removed from Kafka")
        if empty:
            notes.append(
                f"{where}: {empty:,} offsets in [{first}, {end}) have no record: transaction markers, "
                "aborted or compacted records"
            )
    return notes


def _said(lost: Row) -> str:
    return (
        f"{lost.topic}-{lost.partition}: offsets {lost.first_offset} to {lost.last_offset} never landed; "
        f"recorded as lost by --allow data-loss or --skip for {lost.query}"
    )


def _unknown(bronze: DataFrame, source: Source) -> list[str]:
    """Return notes about the most frequent record fields that the contract does not declare."""
    rows = unknown_fields(bronze, source.contract).orderBy(F.desc("records"), "field").limit(EXAMPLES)
    return [
        f"unknown field {row.field!r}: in {row.records:,} records, first in partition "
        f"{row.first_partition} at offset {row.first_offset}; kept in bronze only"
        for row in rows.collect()
    ]


def unknown_fields(rows: DataFrame, contract: Contract) -> DataFrame:
    """Return the top-level JSON fields in bronze rows that the contract does not declare.

    The grain is one row per field, and the key is field. `records` is the number of records with the field,
    and `first_partition` and `first_offset` locate the first such record. Records that are not UTF-8, not
    JSON or not a JSON object count as records without fields.
    """
    text = F.col("value").cast("string")
    names = F.json_object_keys(F.when(F.is_valid_utf8(text), text))
    known = F.array(*map(F.lit, contract.outermost_names))
    place = F.min(F.struct("partition", "offset"))
    return (
        rows.select("partition", "offset", F.explode(F.array_except(names, known)).alias("field"))
        .groupBy("field")
        .agg(F.count(F.lit(1)).alias("records"), place.alias("first"))
        .select(
            "field",
            "records",
            F.col("first.partition").alias("first_partition"),
            F.col("first.offset").alias("first_offset"),
        )
    )


def _in_range(due: Ranges, side: str) -> Column:
    bounds = F.lit(False)
    for partition, (first, end) in due.items():
        here = F.col("partition") == partition
        offset = F.col("offset")
        inside = offset < first if side == "expired" else offset.between(first, end - 1)
        bounds |= here & inside
    return bounds
