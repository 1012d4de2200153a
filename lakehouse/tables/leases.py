"""A lease on a table: while somebody holds it, the query that fills the table waits before its next write.

A table property, `lakehouse.lease`, says who holds the table. Taking a lease is a commit to the table's
metadata, which conflicts with every write in progress; so no write that began earlier lands afterwards. The
name of an empty file beside the table's files says until when. The holder renews it while alive, without a
commit, which its own writes would conflict with. If the holder is killed, the lease expires. If two processes
take a lease at once, the second conflicts, looks again and finds the first.

Parts of a table, such as the letters of one source, have leases of their own,
`lakehouse.lease.<part>.<holder>`: one exclusive holder, or several that share it. No query waits for them.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lakehouse import tables
from lakehouse.errors import TableError
from lakehouse.spark import storage
from lakehouse.tables import Commit

_PROPERTY = "lakehouse.lease"
_DIRECTORY = "_lakehouse_lease"  # VACUUM skips what begins with an underscore
_TERM = re.compile(r"(\d+)-(\w+)")  # until when, in ms since the epoch, and the holder
_LENGTH_S = 60.0
_RENEWED_EVERY_S = 15.0
_LOOK_EVERY_S = 0.2
log = logging.getLogger(__name__)


def begin(spark: SparkSession, path: str) -> Commit:
    """Begin a commit to the table once nobody holds it. A lease taken meanwhile conflicts with the commit."""
    while _held_until(spark, path, (commit := tables.begin(spark, path)).snapshot) > time.time():
        time.sleep(_LOOK_EVERY_S)
    return commit


def is_held(spark: SparkSession, path: str) -> bool:
    """Tell whether somebody holds the table now."""
    return _held_until(spark, path, tables.snapshot(spark, path)) > time.time()


@contextlib.contextmanager
def held(spark: SparkSession, path: str, name: str) -> Iterator[None]:
    """Hold the table for the length of the block.

    Raises TableError if somebody else holds it.
    """
    holder = uuid.uuid4().hex

    def take() -> None:
        commit = tables.begin(spark, path)
        until = _held_until(spark, path, commit.snapshot)
        if until > time.time():
            raise TableError(f"{name} is already being rebuilt or maintained; {_wait_until(until)}")
        commit.set_properties({_PROPERTY: holder})

    with _holding(spark, path, holder, _PROPERTY, take):
        yield


@contextlib.contextmanager
def held_part(spark: SparkSession, path: str, part: str, what: str, *, alone: bool) -> Iterator[None]:
    """Hold a part of the table's rows for the length of the block, exclusively or shared with others.

    `what` says what for. Raises TableError, which names the holder, if somebody else holds the part, unless
    both share it.
    """
    holder = uuid.uuid4().hex
    key = f"{_PROPERTY}.{part}.{holder}"
    value = f"{'alone' if alone else 'shared'} {what} (process {os.getpid()} on {socket.gethostname()})"

    def take() -> None:
        commit = tables.begin(spark, path)
        others = list(_leases_of(spark, path, part, commit.snapshot))
        for one in others:
            if one.until > time.time() and (alone or one.alone):
                raise TableError(f"{what} must wait: {one.what} is running, {_wait_until(one.until)}")
        over = {one.key: None for one in others if one.until <= time.time()}
        commit.set_properties({**over, key: value})

    with _holding(spark, path, holder, key, take):
        yield


def _wait_until(until: float) -> str:
    return (
        f"held at least until {datetime.fromtimestamp(until, UTC):%F %T} UTC; wait for it to end, or until "
        "then if it was killed"
    )


@contextlib.contextmanager
def _holding(
    spark: SparkSession, path: str, holder: str, key: str, take: Callable[[], None]
) -> Iterator[None]:
    """Take a lease, renew it during the block, and return it."""
    over = threading.Event()
    renewal = threading.Thread(target=_renew, args=(spark, path, holder, over), daemon=True)
    _extend(spark, path, holder)
    try:
        tables.retry_on_conflict(take)
        renewal.start()
        try:
            yield
        finally:
            over.set()
            renewal.join()
            tables.retry_on_conflict(lambda: _give_back(spark, path, holder, key))
    finally:
        _forget(spark, path, holder, before_ms=math.inf)


def _give_back(spark: SparkSession, path: str, holder: str, key: str) -> None:
    """Remove the property, unless the lease has expired and somebody else has it by now."""
    commit = tables.begin(spark, path)
    standing = commit.snapshot.metadata().configuration().get(key)
    if standing.isDefined() and holder in (key.rpartition(".")[2], str(standing.get())):
        commit.set_properties({key: None})


def _renew(spark: SparkSession, path: str, holder: str, over: threading.Event) -> None:
    while not over.wait(_RENEWED_EVERY_S):
        try:
            _forget(spark, path, holder, before_ms=_extend(spark, path, holder))
        except (OSError, Py4JError):  # a full disk, say: the term that is noted is valid for a while
            log.warning("the lease of %s was not renewed", path, exc_info=True)


def _extend(spark: SparkSession, path: str, holder: str) -> int:
    """Note that the holder is alive, and return until when that is valid, in ms since the epoch."""
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


@dataclass(frozen=True)
class _Lease:
    """A lease on a part of a table: its property, its purpose, and its end (seconds since the epoch)."""

    key: str
    what: str
    alone: bool
    until: float


def _leases_of(spark: SparkSession, path: str, part: str, snapshot: Any) -> Iterator[_Lease]:
    """Yield the leases on a part of the table, expired ones too."""
    prefix = f"{_PROPERTY}.{part}."
    for key, value in tables.properties_of(snapshot).items():
        if key.startswith(prefix):
            kind, _, what = value.partition(" ")
            until = max(_terms_ms(spark, path, key.removeprefix(prefix)), default=0) / 1000
            yield _Lease(key, what, kind == "alone", until)
