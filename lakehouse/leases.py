"""A lease on a table: while one is held, the query that fills the table waits before its next write.

The lease is a property of the Delta table, `lakehouse.lease`: until when it is held, and by whom. To take it
is a commit of the table's metadata, with which every write that is under way conflicts; so from then on no
write lands that began before. It is renewed while its holder lives, and runs out by itself when it is killed.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from lakehouse import tables
from lakehouse.errors import TableError

_PROPERTY = "lakehouse.lease"
_LENGTH_S = 60.0
_RENEWED_EVERY_S = 15.0
_LOOK_EVERY_S = 0.2


def await_end(spark: SparkSession, path: str) -> int:
    """Return the table's version once nobody holds the table."""
    while _held_until(standing := tables.snapshot(spark, path)) > time.time():
        time.sleep(_LOOK_EVERY_S)
    return int(standing.version())


def is_held(spark: SparkSession, path: str) -> bool:
    """Tell whether somebody holds the table now."""
    return _held_until(tables.snapshot(spark, path)) > time.time()


@contextlib.contextmanager
def held(spark: SparkSession, path: str, name: str) -> Iterator[None]:
    """Hold the table for the length of the block.

    Raises TableError where somebody else holds it.
    """
    until = _held_until(tables.snapshot(spark, path))
    if until > time.time():
        raise TableError(
            f"{name} is being rebuilt already, and held until {datetime.fromtimestamp(until, UTC):%F %T} UTC "
            "at least; wait for that to end, or until then if it was killed"
        )
    holder, over = uuid.uuid4().hex, threading.Event()
    _take(spark, path, holder)
    renewal = threading.Thread(target=_renew, args=(spark, path, holder, over), daemon=True)
    renewal.start()
    try:
        yield
    finally:
        over.set()
        renewal.join()
        tables.set_property(spark, path, _PROPERTY, None)


def _renew(spark: SparkSession, path: str, holder: str, over: threading.Event) -> None:
    while not over.wait(_RENEWED_EVERY_S):
        _take(spark, path, holder)


def _take(spark: SparkSession, path: str, holder: str) -> None:
    tables.set_property(spark, path, _PROPERTY, f"{time.time() + _LENGTH_S:.3f} {holder}")


def _held_until(snapshot: Any) -> float:
    lease = snapshot.metadata().configuration().get(_PROPERTY)
    return float(lease.get().split()[0]) if lease.isDefined() else 0.0
