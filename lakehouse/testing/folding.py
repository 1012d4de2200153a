"""Run a stream without a lake: validate, aggregate, merge and export its records in data frames.

The layers' own code validates the records and computes the changes to gold (`lakehouse.engine.layers.folds`).
Only the state differs: watermarks, clean rows, dead letters and gold are kept in memory instead of tables. In
gold, a new row replaces the row with the same key. `lakehouse try` shows the results, and `lakehouse.testing`
compares them with expected rows.

    folding = Folding(spark, TRANSACTIONS)
    folding.take({"transactions": records}, landed_at=noon)
    folding.frame("gold.user_transactions_5m")
    folding.leaving("user_transactions_5m")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.common.record_lines import Record
from lakehouse.engine.formats.decode import decoded
from lakehouse.engine.layers import bronze, folds, recomputing
from lakehouse.engine.layers.folds import Facts, Given
from lakehouse.engine.records import comparing, identity
from lakehouse.engine.records.dead_letters import status_by
from lakehouse.engine.records.validation import filter_clean, filter_dead, judge, silver_schema, watermark_of
from lakehouse.engine.records.zones import check_zones
from lakehouse.sinks.change import Change
from lakehouse.sinks.outgoing import changes_of, leaves, within
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.spark.execution import Amount, gathered
from lakehouse.storage.spark.kafka_times import KAFKA_TIMES, NO_TIMESTAMP
from lakehouse.storage.tables import DELETED, from_micros
from lakehouse.storage.tables.commits import changed_rows
from lakehouse.streams.contract import COORDINATES, OWN_TIME
from lakehouse.streams.definition import (
    EventClock,
    EventTimeProgress,
    GoldTable,
    MergedTable,
    Source,
    Stream,
)

DEAD_LETTERS = "silver.dead_letters"
_IDS = ("unique_id", "sequence")
_TIMES = ("event_time", "own_time", "admitted")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_ROWS, _MOST_BYTES = 10_000_000, 1 << 40
_KIND = "_change_type"

Rows = Mapping[str, DataFrame]


@dataclass(frozen=True)
class Message:
    """The message for a row in a gold or side table.

    `topic` is None if the table is exported only to stores; `key` is then the row's key in the store. `value`
    is JSON, or None for a tombstone.
    """

    table: str
    topic: str | None
    key: str
    value: str | None


class Folding:
    """The tables of a stream, held in data frames, after a number of micro-batches.

    `topic` maps a topic's default name to its actual name. `is_small` means that there are only a few rows,
    which a single task processes.
    """

    def __init__(
        self,
        spark: SparkSession,
        stream: Stream,
        topic: Callable[[str], str] = lambda name: name,
        *,
        is_small: bool = False,
    ) -> None:
        """Raise SettingsError for a time zone that Java does not know."""
        check_zones(spark, stream)
        self.stream = stream
        self.spark = spark
        self._topic = topic
        self._is_small = is_small
        self._number = 0
        self._dead: list[DataFrame] = []
        self._clean = {source.table: [self._empty(silver_schema(source))] for source in stream.sources}
        self._raw: dict[str, list[DataFrame]] = {}
        self._left: dict[str, DataFrame] = {}
        self._gold = {table.name: self._empty(table.schema) for table in stream.tables}
        self._feeds: dict[str, list[DataFrame]] = {}
        self._offsets: Counter[tuple[str, int]] = Counter()
        self._accepted: dict[str, datetime | None] = {}
        self._merged: dict[str, datetime] = {}

    def numbered(self, source: Source, records: Iterable[Record]) -> list[Record]:
        """Return a source's records, each with the topic, partition and offset at which it lands.

        A record without a partition gets partition 0. A record without an offset gets the partition's next
        offset.
        """
        topic, found = self._topic(source.topic), list[Record]()
        for record in records:
            partition = record.partition or 0
            offset = self._offsets[topic, partition] if record.offset is None else record.offset
            self._offsets[topic, partition] = max(self._offsets[topic, partition], offset + 1)
            found.append(replace(record, topic=topic, partition=partition, offset=offset))
        return found

    def take(
        self, records: Mapping[str, Sequence[Record]], *, landed_at: datetime, now: datetime | None = None
    ) -> None:
        """Process one micro-batch. `records` contains each source's records, keyed by table name.

        `now` is the clock's time during the merge into gold, by default the landing time.
        """
        self.merge(self.judge(records, landed_at=landed_at), now=now or landed_at)

    def judge(self, records: Mapping[str, Sequence[Record]], *, landed_at: datetime) -> Rows:
        """Validate records that land at this time, and return the clean rows, keyed by table.

        The other records become dead letters. Rows that the records correct or delete are removed from silver
        and, at the next merge, from gold.
        """
        return {
            source.table: self._judged(source, records.get(source.table, ()), landed_at)
            for source in self.stream.sources
        }

    def merge(self, clean: Rows, *, now: datetime, twice: bool = False) -> None:
        """Merge all sources' clean rows into gold, as one micro-batch.

        `twice` simulates a first attempt that was killed after writing the side tables but before writing the
        main table.
        """
        self._number += 1
        self._feeds = {}
        for name, rows in clean.items():
            self._clean[name].append(rows)
        for table in self.stream.gold:
            coming = table.combine({name: clean[name] for name in table.reads})
            self._merge(table, self._gathered(coming), now, self._left_of(table), twice=twice)
        self._left = {}

    def tick(self, now: datetime) -> None:
        """Apply the changes that are due by the wall clock at `now`, without new records."""
        self._number += 1
        self._feeds = {}
        for table in self.stream.gold:
            clock = table.wall_clock
            if clock is not None:
                due = clock.waits() & folds.until_due(clock, now).condition()
                self._put(table, self._gold[table.name].where(due).withColumns(dict(clock.set_columns())))

    def frame(self, table: str) -> DataFrame:
        """Return the current rows of a silver or gold table, or the dead letters.

        Dead letters have the columns topic, partition, offset, key, value, headers, kafka_timestamp and
        reasons.
        """
        layer, name = table.split(".")
        if layer == "gold":
            return self._gold[name]
        if table == DEAD_LETTERS:
            (source, *_) = self.stream.sources
            none = filter_dead(judge(decoded(self._empty(bronze.SCHEMA), source, None), source, None))
            return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), self._dead or [none])
        return reduce(DataFrame.unionByName, self._clean[name])

    def leaving(self, table: str) -> list[Change]:
        """Return the changes that the last micro-batch or tick exports from a table, in export order."""
        (kept,) = (one for one in self.stream.tables if one.name == table)
        feeds = self._feeds.get(table, [])
        if not feeds:
            return []
        newest = reduce(DataFrame.unionByName, feeds).where(F.col(_KIND) != "update_preimage")
        leaving = newest.where(leaves(kept))
        found = within(leaving, changes_of(kept), rows=_MOST_ROWS, size_bytes=_MOST_BYTES)
        if found is None:
            raise ValueError(f"more than {_MOST_ROWS:,} rows of {table} would be sent at once")
        return found

    def messages(self, *, stored: bool = True) -> list[Message]:
        """Return the messages from the last micro-batch or tick, table by table and in export order.

        If `stored` is false, tables without a topic are skipped.
        """
        found = []
        for table in self.stream.tables:
            if table.export.topic is None and not stored:
                continue
            topic = None if table.export.topic is None else self._topic(table.export.topic)
            for change in self.leaving(table.name):
                key = change.row_key if topic is None else change.key
                if topic is None or change.has_message:
                    found.append(Message(table.name, topic, key, change.value))
        return found

    def _left_of(self, table: GoldTable) -> DataFrame | None:
        """Return the rows that were removed from a gold table's silver tables, or None if there are none."""
        if not self._left.keys() & set(table.reads):
            return None
        sources = {source.table: source for source in self.stream.sources}
        none = {name: self._empty(silver_schema(sources[name])) for name in table.reads}
        return table.combine({name: self._left.get(name, none[name]) for name in table.reads})

    def _empty(self, schema: Any) -> DataFrame:
        return local_frame(self.spark, [], schema)

    def _gathered(self, rows: DataFrame) -> DataFrame:
        return gathered(rows, Amount.FEW if self._is_small else Amount.MANY)

    def _judged(self, source: Source, records: Sequence[Record], landed_at: datetime) -> DataFrame:
        """Return the clean records, given the current watermark. The others become dead letters."""
        rows = landed(self.numbered(source, records), landed_at)
        if not rows:
            return self._clean[source.table][0]
        reached = self._accepted.get(source.table)
        watermark = watermark_of(reached, source.allowed_lateness_s)
        frame = self._gathered(local_frame(self.spark, rows, bronze.SCHEMA))
        judged = judge(decoded(frame, source, None), source, watermark).localCheckpoint()
        if source.unique_by is not None:
            self._raw.setdefault(source.table, []).append(judged.select(*COORDINATES, "raw"))
            judged = self._settled(source, judged)
        clean = filter_clean(judged)
        self._dead.append(filter_dead(judged))
        self._accepted[source.table] = _later(reached, _greatest_own_time(clean))
        return clean

    def _settled(self, source: Source, judged: DataFrame) -> DataFrame:
        """Compare records with silver by id, remove replaced rows, and return the records with reasons."""
        name, places = source.table, list(COORDINATES)
        standing = self.frame(f"silver.{name}")
        letters = self.frame(DEAD_LETTERS).withColumn("status", status_by(F.col("reasons")))
        letters = letters.where(identity.are_compared() & (F.col("topic") == self._topic(source.topic)))
        own = judged.where(F.col(identity.OF_ID).isNotNull())
        outcome = comparing.compared(source, own, standing, letters).localCheckpoint()
        self._change_letters(comparing.changed_by(outcome))
        left = comparing.removed_by(outcome)
        if not left.isEmpty():
            rows = standing.join(left.select(*places), places, "left_semi").localCheckpoint()
            self._clean[name] = [standing.join(left.select(*places), places, "left_anti").localCheckpoint()]
            self._left[name] = rows
            raw = (
                reduce(DataFrame.unionByName, self._raw[name])
                .join(left.drop("kafka_timestamp"), places)
                .select(*places, "raw.*", "ingested_at", *_TIMES, "reasons", *_IDS)
            )
            self._dead.append(raw.localCheckpoint())
        return comparing.with_outcome(judged, outcome).localCheckpoint()

    def _change_letters(self, changed: DataFrame) -> None:
        """Update the reasons of existing dead letters."""
        if changed.isEmpty():
            return
        places, letters = list(COORDINATES), self.frame(DEAD_LETTERS)
        new = changed.withColumnRenamed("reasons", "_new")
        found = letters.join(new, places, "left").withColumn("reasons", F.coalesce("_new", "reasons"))
        self._dead = [found.select(*letters.columns).localCheckpoint()]

    def _merge(
        self, table: GoldTable, clean: DataFrame, now: datetime, left: DataFrame | None, *, twice: bool
    ) -> None:
        """Merge clean rows into a table. `left` contains the rows removed from silver, if any."""
        partials = table.preaggregate(clean).localCheckpoint()
        gone = None if left is None else table.preaggregate(left).localCheckpoint()
        facts = Facts.of(table, partials if gone is None else partials.unionByName(gone))
        if not facts.rows:
            return
        front, progress = self._merged.get(table.name), EventTimeProgress(None, now)
        if isinstance(table.clock, EventClock) and facts.reached is not None:
            self._merged[table.name] = max(front or facts.reached, facts.reached)
            progress = EventTimeProgress(front, self._merged[table.name])
        near, current = folds.touched(table, facts, progress, exactly=True), self._gold[table.name]
        current = self._gathered(current if near is None else current.where(near.condition()))
        given = Given(facts, progress, front, None if gone is None else gone.select(*table.keys), front)
        for is_again in (False, True) if twice and table.sides else (False,):
            folded = folds.folded(table, partials, current, given, partial(self._made_anew, table))
            folded = replace(folded, rows=folded.rows.localCheckpoint())
            for side in table.sides:
                rows, kept = side.rows(folded.rows), self._gold[side.name]
                theirs = folds.to_compare(table, side, folded, is_again=is_again)
                self._put(side, folds.differences(side, rows, kept, theirs) if theirs else rows)
        self._put(table, folded.rows)

    def _made_anew(self, table: GoldTable, keyed: DataFrame) -> DataFrame:
        """Recompute the partials for these keys from all clean rows so far."""
        history = table.combine({name: self.frame(f"silver.{name}") for name in table.reads})
        return recomputing.of_keys(table, self._gathered(history), keyed).localCheckpoint()

    def _put(self, table: MergedTable, rows: DataFrame) -> None:
        """Upsert rows by key, and record the changes in the change feed."""
        columns = {column.name: column.dataType for column in table.schema}
        new = rows.select(
            *(F.col(name).cast(type_).alias(name) for name, type_ in columns.items()),
            (F.coalesce(DELETED, F.lit(False)) if DELETED in rows.columns else F.lit(False)).alias(DELETED),
        )
        old = self._gold[table.name]
        written = changed_rows(old, new, list(table.keys), F.col(DELETED))
        written = self._gathered(written).localCheckpoint()
        self._gold[table.name] = written.where(F.col(_KIND).isNull()).drop(_KIND)
        feed = written.where(F.col(_KIND).isNotNull())
        self._feeds.setdefault(table.name, []).append(feed.withColumn("_commit_version", F.lit(self._number)))


def landed(records: Iterable[Record], landed_at: datetime) -> list[tuple[Any, ...]]:
    """Return numbered records that landed at this time (UTC) as bronze rows, in bronze's column order.

    A record without a timestamp gets the landing time. A timestamp that is not a valid time is stored in a
    separate column.
    """
    rows: list[tuple[Any, ...]] = []
    for record in records:
        stamp, raw = landed_at, record.timestamp_ms
        if raw is not None and raw in KAFKA_TIMES and raw != NO_TIMESTAMP:
            stamp, raw = _EPOCH + timedelta(milliseconds=raw), None
        headers = [tuple(header) for header in record.headers] or None
        coordinates = (record.topic, record.partition, record.offset)
        time = (None if raw is not None else stamp, 0, landed_at, raw)
        rows.append((record.key, record.value, headers, *coordinates, *time))
    return rows


def _greatest_own_time(clean: DataFrame) -> datetime | None:
    """Return the greatest event time that the records themselves contain.

    The time is collected in microseconds, because local times can be ambiguous.
    """
    found = clean.agg(F.unix_micros(F.max(OWN_TIME)).alias("micros")).first()
    return None if found is None or found.micros is None else from_micros(found.micros)


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return max((moment for moment in (one, other) if moment is not None), default=None)
