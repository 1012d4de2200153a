"""Old tables for `benchmarks.ageing`, like those of a lake after many days of running and upkeep.

Spark generates the rows in time order, in files of about the size that maintenance writes. Readers of a table
skip the commit that adds the rows, just as they skip a compaction. Then the log is lengthened with commits
that contain only commit information. Each commit gets the checksum file that Delta would write.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.dev.samples.metrics import ENVIRONMENTS, METRICS, SERVICES
from lakehouse.engine.layers import bronze, gold, silver
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, TableSpec
from lakehouse.storage.tables import delta_internals as delta
from lakehouse.storage.tables.log import CHECKPOINT_INTERVAL
from lakehouse.streams.definition import Stream

DAYS = 90
"""The age to which the row counts below apply. Lakes with fewer days have the same number of rows per day."""

ROWS = 5_000_000
_FEWER = {
    "gold.user_transactions_5m": 2_000_000,
    "gold.metrics_summary_10m": 150_000,
    "gold.sales_notifications": 100_000,
    "silver.dead_letters": 100_000,
}
COMMITS = 10_000
_LAST = "_last_checkpoint"
_ROWS_A_FILE = 100_000
_SKETCHES_KEPT_DAYS = 8  # maintenance clears sketches once their rows are too old to be updated


@dataclass(frozen=True)
class _Row:
    """The columns from which the tables' rows are generated: a number, starting at 0, and the row's time."""

    number: Column
    at: Column

    def one_of(self, values: Sequence[str]) -> Column:
        return F.element_at(F.array(*map(F.lit, values)), (F.abs(F.hash(self.number)) % len(values) + 1))

    def in_turn(self, values: Sequence[str], each: int = 1) -> Column:
        """Return a column that cycles through the values, so that they differ within a window."""
        place = F.floor(self.number / each) % len(values) + 1
        return F.element_at(F.array(*map(F.lit, values)), place.cast("int"))


def add_rows(lake: Lake, streams: Sequence[Stream], *, days: int, until: datetime) -> None:
    """Fill the streams' tables with rows for a number of days before a time (UTC).

    No two rows have the same key. Rows that the tables already contain must be newer. A second call adds the
    rows again.
    """
    for spec in _specs(streams):
        if spec.cluster_by is not None:
            _add_rows(lake, spec, days=days, until=until)


def lengthen_logs(lake: Lake, streams: Sequence[Stream]) -> None:
    """Lengthen the logs of the streams' tables to `COMMITS` commits. A rerun changes nothing."""
    for spec in _specs(streams):
        _lengthen_log(lake, lake.path(spec.layer, spec.name))


def _specs(streams: Sequence[Stream]) -> list[TableSpec]:
    specs = [DEAD_LETTERS]
    for stream in streams:
        specs += [bronze.spec(source) for source in stream.sources]
        specs += [silver.spec(source) for source in stream.sources]
        specs += [gold.spec(table) for table in stream.tables]
    return specs


def _add_rows(lake: Lake, spec: TableSpec, *, days: int, until: datetime) -> None:
    count = _FEWER.get(spec.qualified_name, ROWS) * days // DAYS
    numbers = lake.spark.range(0, count, 1, max(1, count // _ROWS_A_FILE))
    step_us = timedelta(days=days) / timedelta(microseconds=1) / count
    first = F.lit(until - timedelta(days=days))
    at = F.timestamp_micros(F.unix_micros(first) + (F.col("id") * step_us).cast("long"))
    made = {
        name: value.cast(spec.schema[name].dataType)
        for name, value in _columns(spec, _Row(F.col("id"), at), until).items()
    }
    unknown = {field.name: F.lit(None).cast(field.dataType) for field in spec.schema}
    rows = numbers.select(*((made.get(name, null)).alias(name) for name, null in unknown.items()))
    _append_as_compaction(rows, lake.path(spec.layer, spec.name))


def _append_as_compaction(rows: DataFrame, path: str) -> None:
    rows.write.format("delta").mode("append").option("dataChange", "false").save(path)


def _columns(spec: TableSpec, row: _Row, until: datetime) -> Mapping[str, Column]:
    makers: Mapping[str, Callable[[_Row, datetime], Mapping[str, Column]]] = {
        "gold.metrics_1m": _windows_1m,
        "gold.metrics_summary_10m": _summaries,
        "gold.call_records": _calls,
        "gold.sales_notifications": _notifications,
        "gold.user_transactions_5m": _user_windows,
        "silver.dead_letters": _letters,
    }
    if spec.layer == "bronze":
        return _records(spec, row)
    if spec.qualified_name in makers:
        return makers[spec.qualified_name](row, until)
    return _clean(spec, row)


def _coordinates(row: _Row) -> dict[str, Column]:
    """Return coordinates that come before a topic's first real record."""
    return {"topic": F.lit("before"), "partition": F.lit(0), "offset": row.number - ROWS * 10}


def _records(spec: TableSpec, row: _Row) -> dict[str, Column]:
    value = F.format_string('{"of":"%s","value":%.2f,"number":%d}', F.lit(spec.name), _value(row), row.number)
    return {
        "key": _user(row).cast("binary"),
        "value": value.cast("binary"),
        **_coordinates(row),
        "timestamp": row.at,
        "timestamp_type": F.lit(0),
        "ingested_at": row.at,
    }


def _clean(spec: TableSpec, row: _Row) -> dict[str, Column]:
    values = {
        "service_id": row.one_of(SERVICES),
        "metric_name": row.one_of(METRICS),
        "environment": row.one_of(ENVIRONMENTS),
        "user_id": _user(row),
        "user1": _user(row),
        "user2": row.one_of(("a", "b", "c", "d")),
        "product": F.format_string("product%d", row.number % 1000),
        "value": _value(row),
        "amount": _value(row),
        "analytics": F.format_string('{"n":%d}', row.number % 1000),
        "metrics": F.format_string('{"n":%d}', row.number % 1000),
    }
    found = {name: value for name, value in values.items() if name in spec.schema.names}
    return found | {"event_time": row.at, "own_time": row.at} | _coordinates(row)


def _windows_1m(row: _Row, until: datetime) -> dict[str, Column]:
    names = {"service_id": row.in_turn(SERVICES, len(METRICS)), "metric_name": row.in_turn(METRICS)}
    return names | _statistics(row, until, "1 minute")


def _summaries(row: _Row, until: datetime) -> dict[str, Column]:
    names = {"environment": row.in_turn(ENVIRONMENTS, len(METRICS)), "metric_name": row.in_turn(METRICS)}
    return names | _statistics(row, until, "10 minutes")


def _statistics(row: _Row, until: datetime, length: str) -> dict[str, Column]:
    least, greatest = _value(row), _value(row) + 50
    window, kept_from = F.window(row.at, length), until - timedelta(days=_SKETCHES_KEPT_DAYS)
    is_kept = row.at > F.lit(kept_from)
    return {
        "window_start": window.start,
        "window_end": window.end,
        "count": F.lit(2),
        "sum": least + greatest,
        "min": least,
        "max": greatest,
        "avg": least + 25,
        "variance": F.lit(1250.0),
        "stddev": F.lit(35.35533905932738),
        "p50": least,
        **dict.fromkeys(("p90", "p95", "p99"), greatest),
        "last_event_time": row.at,
        "is_final": F.lit(True),
        "m2": F.when(is_kept, F.lit(1250.0)),
        "sketch": F.when(is_kept, F.expr(_SKETCH)),
    }


_SKETCH = "(SELECT kll_sketch_agg_double(v, 200) FROM VALUES (1.0D), (51.0D) AS t(v))"


def _calls(row: _Row, _until: datetime) -> dict[str, Column]:
    payload = F.format_string('{"n":%d}', row.number % 1000)
    place = F.struct(row.at.alias("event_time"), F.lit(0).alias("partition"), (row.number - ROWS * 10))
    return {
        "user1": _user(row),
        "user2": row.one_of(("a", "b", "c", "d")),
        "ts": row.at,
        "analytics": payload,
        "metrics": payload,
        "analytics_events": F.lit(1),
        "metrics_events": F.lit(1),
        "last_event_time": row.at + F.expr("INTERVAL 5 SECONDS"),
        "status": F.lit("closed"),
        "closed_at": row.at + F.expr("INTERVAL 4 MINUTES"),
        "was_closed": F.lit(True),
        "analytics_place": place,
        "metrics_place": place,
    }


def _notifications(row: _Row, _until: datetime) -> dict[str, Column]:
    return {
        "product": F.format_string("product%d", row.number % 1000),
        "value": _value(row) + 2000,
        "crossing": F.lit(1),
        "event_time": row.at,
        "partition": F.lit(0),
        "offset": row.number - ROWS * 10,
    }


def _user_windows(row: _Row, _until: datetime) -> dict[str, Column]:
    window = F.window(row.at, "5 minutes")
    return {
        "user_id": _user(row),
        "window_start": window.start,
        "window_end": window.end,
        "total_amount": _value(row),
        "count": F.lit(2),
    }


def _letters(row: _Row, _until: datetime) -> dict[str, Column]:
    return {
        "id": F.sha2(row.number.cast("string"), 256),
        "stream": F.lit("metrics"),
        "stage": F.lit("silver"),
        **_coordinates(row),
        "kafka_timestamp": row.at,
        "value": F.format_string("{%d", row.number).cast("binary"),
        "status": F.lit("open"),
        "attempts": F.lit(1),
        "first_seen": row.at,
        "last_attempt": row.at,
        "job": F.lit("silver.metrics_events"),
        "code_version": F.lit("0.1.0"),
    }


def _user(row: _Row) -> Column:
    return F.format_string("user-%d", row.number * 7919 % 100_000)  # every user, in a different order


def _value(row: _Row) -> Column:
    return (F.abs(F.xxhash64(row.number)) % 10_000) / 100 + 1


def _lengthen_log(lake: Lake, path: str) -> None:
    """Add empty commits until the log is long enough, with checkpoints at the usual interval.

    The commits and checkpoints are hard links to the same few files. Writing and removing that many separate
    files would take longer than the measurement.
    """
    log, version = Path(path) / "_delta_log", tables.version_of(lake.spark, path)
    delta.write_checkpoint(delta.log_of(lake.spark, path))
    last = json.loads((log / _LAST).read_text(encoding="utf-8"))
    (log / f".{_LAST}.crc").unlink(missing_ok=True)  # Hadoop's checksum for the file
    checksum = json.loads((log / f"{version:020}.crc").read_text(encoding="utf-8"))
    commit = {"operation": "STREAMING UPDATE", "isBlindAppend": True, "timestamp": int(time.time() * 1000)}
    commits = range(version + 1, COMMITS)
    for kind, value in (("json", {"commitInfo": commit}), ("crc", checksum | {"txnId": "ageing"})):
        first = log / f"{commits[0]:020}.{kind}"
        first.write_text(json.dumps(value) + "\n", encoding="utf-8")
        for number in commits[1:]:
            os.link(first, log / f"{number:020}.{kind}")
    ends = [number for number in commits if number % CHECKPOINT_INTERVAL == 0 or number == commits[-1]]
    for number in ends:
        os.link(log / f"{version:020}.checkpoint.parquet", log / f"{number:020}.checkpoint.parquet")
    (log / _LAST).write_text(json.dumps({"version": ends[-1], "size": last["size"]}), encoding="utf-8")
