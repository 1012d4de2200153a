"""Streams of payments with ids, with versions, or with neither, and a small lake with one of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

from pyspark.sql import functions as F

from lakehouse.engine.layers import silver
from lakehouse.engine.layers.step import Permitted
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Stream
from lakehouse.streams.kinds import Records, windowed_sums
from lakehouse.testing.kills import take_next
from tests.support import pipeline
from tests.support.pipeline import DEAD_LETTERS, Raw

LANDED = pipeline.utc("2026-03-29T12:00:00")
LANDED_MS = int(LANDED.timestamp() * 1000)


def payments(unique_by: str | None = None, sequence_by: str | None = None) -> Stream:
    records = Records("payments", unique_by=unique_by, sequence_by=sequence_by)
    return windowed_sums("payments", records, by="user", value="amount", length="5m", gold_table="sums")


CORRECTED, UNIQUE, PLAIN = (
    payments(unique_by="id", sequence_by="version"),
    payments(unique_by="id"),
    payments(),
)


def paid(
    id_: str, version: int, amount: object = 1, *, at_ms: int = LANDED_MS, sent_s: int = 0, partition: int = 0
) -> Raw:
    record = {"id": id_, "version": version, "user": "ann", "amount": amount, "timestamp": at_ms}
    stamp = LANDED_MS + sent_s * 1000
    return Raw(json.dumps(record).encode(), partition=partition, timestamp_ms=stamp)


def deleted(id_: str, *, sent_s: int, partition: int = 0) -> Raw:
    return Raw(None, id_.encode(), partition=partition, timestamp_ms=LANDED_MS + sent_s * 1000)


class Run:
    """A lake, its only stream, and silver's outcomes of the landed records."""

    def __init__(self, lake: Lake, settings: Settings, stream: Stream, max_bytes: int = 1) -> None:
        self.lake, self.settings, self.stream, self.max_bytes = lake, settings, stream, max_bytes
        self.landed = 0

    def take(self, *commits: Sequence[Raw]) -> None:
        """Land each commit, and let a new silver step process the landed records."""
        (source,) = self.stream.sources
        pipeline.land(
            self.lake.spark,
            self.settings,
            commits,
            landed_at=LANDED,
            first_offset=self.landed,
            source=source,
        )
        self.landed += sum(map(len, commits))
        self.catch_up()

    def catch_up(self) -> int:
        """Let a new silver step process the landed records, and return the number of micro-batches."""
        (maker,) = silver.steps(self.lake, self.stream, self.max_bytes, Permitted())
        step = maker.make()
        taken = 0
        while take_next(step, now=LANDED + timedelta(hours=1)) is not None:
            taken += 1
        return taken

    def rearrange_bronze(self, order: str, rows_a_file: int) -> None:
        """Rewrite bronze's rows in this order, file after file, like another writer's ZORDER."""
        path = str(pipeline.path_of(self.settings, "bronze.payments"))
        rows = self.lake.spark.read.format("delta").load(path).coalesce(1)
        sorted_ = rows.sortWithinPartitions(F.expr(order), "offset")
        writer = sorted_.write.format("delta").mode("overwrite").option("dataChange", "false")
        writer.option("maxRecordsPerFile", rows_a_file).save(path)

    @property
    def rows(self) -> list[int]:
        return sorted(row["offset"] for row in pipeline.rows_of(self.settings, "silver.payments"))

    @property
    def letters(self) -> dict[int, tuple[str, str]]:
        """The status and the first rule of each letter, by offset."""
        rows = pipeline.rows_of(self.settings, DEAD_LETTERS)
        found = {row["offset"]: (row["status"], row["reasons"][0]["rule"]) for row in rows}
        assert len(found) == len(rows), "two letters for one record"
        return found
