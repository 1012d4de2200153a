"""A lease on a table: while one is held, the query that fills the table waits before its next write.

Who holds a table is a property of it, `lakehouse.lease`. To take it is a commit of the table's metadata, with
which every write that is under way conflicts; so from then on no write lands that began before. Until when is
the name of an empty file beside the table's own: its holder renews it while it lives, without a commit that
its own writes would conflict with, and a lease whose holder is killed runs out by itself.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from lakehouse import storage, tables
from lakehouse.errors import TableError
from lakehouse.tables import Commit

_PROPERTY = "lakehouse.lease"
_DIRECTORY = "_lakehouse_lease"  # VACUUM leaves what begins with an underscore
_TERM = re.compile(r"(\d+)-(\w+)")  # until when, ms since the epoch, and who
_LENGTH_S = 60.0
_RENEWED_EVERY_S = 15.0
_LOOK_EVERY_S = 0.2


def begin(spark: SparkSession, path: str) -> Commit:
    """Begin a commit to the table once nobody holds it; taking it meanwhile conflicts with the commit."""
    while _held_until(spark, path, (commit := tables.begin(spark, path)).snapshot) > time.time():
        time.sleep(_LOOK_EVERY_S)
    return commit


def is_held(spark: SparkSession, path: str) -> bool:
    """Tell whether somebody holds the table now."""
    return _held_until(spark, path, tables.snapshot(spark, path)) > time.time()


@contextlib.contextmanager
def held(spark: SparkSession, path: str, name: str) -> Iterator[None]:
    """Hold the table for the length of the block.

    Raises TableError where somebody else holds it.
    """
    until = _held_until(spark, path, tables.snapshot(spark, path))
    if until > time.time():
        raise TableError(
            f"{name} is being rebuilt already, and held until {datetime.fromtimestamp(until, UTC):%F %T} UTC "
            "at least; wait for that to end, or until then if it was killed"
        )
    holder, over = uuid.uuid4().hex, threading.Event()
    _extend(spark, path, holder)
    tables.set_property(spark, path, _PROPERTY, holder)
    renewal = threading.Thread(target=_renew, args=(spark, path, holder, over), daemon=True)
    renewal.start()
    try:
        yield
    finally:
        over.set()
        renewal.join()
        tables.set_property(spark, path, _PROPERTY, None)
        _forget(spark, path, holder, before_ms=math.inf)


def _renew(spark: SparkSession, path: str, holder: str, over: threading.Event) -> None:
    while not over.wait(_RENEWED_EVERY_S):
        _forget(spark, path, holder, before_ms=_extend(spark, path, holder))


def _extend(spark: SparkSession, path: str, holder: str) -> int:
    """Write down that the holder is alive, and return until when that holds, in ms since the epoch."""
    until_ms = int((time.time() + _LENGTH_S) * 1000)
    storage.write_text(spark, f"{path}/{_DIRECTORY}/{until_ms}-{holder}", "")
    return until_ms


def _forget(spark: SparkSession, path: str, holder: str, before_ms: float) -> None:
    for until_ms in _terms_ms(spark, path, holder):
        if until_ms < before_ms:
            storage.delete(spark, f"{path}/{_DIRECTORY}/{until_ms}-{holder}")


def _terms_ms(spark: SparkSession, path: str, holder: str) -> list[int]:
    found = map(_TERM.fullmatch, storage.names(spark, f"{path}/{_DIRECTORY}"))
    return [int(term[1]) for term in found if term is not None and term[2] == holder]


def _held_until(spark: SparkSession, path: str, snapshot: Any) -> float:
    holder = snapshot.metadata().configuration().get(_PROPERTY)
    return max(_terms_ms(spark, path, str(holder.get())), default=0) / 1000 if holder.isDefined() else 0.0
