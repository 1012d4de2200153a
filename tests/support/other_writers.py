"""Tables written by other programs: sessions in other time zones, pyarrow and DuckDB."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from pyspark.sql import SparkSession

from lakehouse.storage.spark import internals


@contextmanager
def in_zone(spark: SparkSession, zone: str) -> Iterator[SparkSession]:
    """Open a session in a time zone for the block; then `spark` is the thread's active session again."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield session
    finally:
        internals.set_active(spark)


def add_by_pyarrow(path: str, rows: pa.Table, stats: Mapping[str, Any] | None) -> None:
    """Add rows in a file written by pyarrow, with the given statistics, or with none if they are None."""
    file = _new_file(path)
    pq.write_table(rows, file)
    _add(path, file, stats)


def add_by_duckdb(path: str, rows: pa.Table) -> None:
    """Add rows in a file written by DuckDB, which does not write logs, so there are no statistics."""
    file = _new_file(path)
    with duckdb.connect() as database:
        database.register("given", rows)
        database.execute("SET TimeZone = 'UTC'")
        database.execute(f"COPY given TO '{file}' (FORMAT parquet)")
    _add(path, file, None)


def _new_file(path: str) -> Path:
    return Path(path, f"part-{uuid.uuid4()}.parquet")


def _add(path: str, file: Path, stats: Mapping[str, Any] | None) -> None:
    now_ms = int(time.time() * 1000)
    text = None if stats is None else json.dumps(stats)
    action = AddAction(file.name, file.stat().st_size, {}, now_ms, True, text)  # type: ignore[arg-type]
    table = DeltaTable(path)
    table.create_write_transaction([action], "append", table.schema(), [])
