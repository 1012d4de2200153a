"""Leases on tables. While a process holds a lease, the query that fills the table waits before it writes.

A table property, `lakehouse.lease`, names the holder. A process takes a lease by committing a change to the
table's metadata. This commit conflicts with every write in progress, so no write that began earlier is
committed afterwards. A term next to the table's files (`terms`) contains the expiry time, and the holder
renews the term while it is alive. Renewing takes no commit, because a commit would conflict with the holder's
own writes. If the holder is killed, the lease expires. If two processes take a lease at the same time, the
second commit conflicts. The second process then retries and finds the first lease.

If the holder's clock is slow by more than a term (`terms`), the table appears free at first, and
micro-batches continue until they see a renewal. A rebuild then loses no rows, but needs another round,
because it compares until nothing differs.

Parts of a table, such as the dead letters of one source, have their own leases,
`lakehouse.lease.<part>.<holder>`. No query waits for these leases.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lakehouse.common.background import beside
from lakehouse.common.errors import TableError
from lakehouse.storage import tables
from lakehouse.storage.tables import Commit
from lakehouse.storage.tables.terms import Terms

_PROPERTY = "lakehouse.lease"
_DIRECTORY = "_lakehouse_lease"  # VACUUM skips names that begin with an underscore
_LENGTH_S = 60.0
_RENEWED_EVERY_S = 15.0
_LOOK_EVERY_S = 0.2
log = logging.getLogger(__name__)


def begin(spark: SparkSession, path: str) -> Commit:
    """Begin a commit to the table once it has no lease. A lease taken later conflicts with the commit."""
    while _held_until(spark, path, (commit := tables.begin(spark, path)).snapshot):
        time.sleep(_LOOK_EVERY_S)
    return commit


def is_held(spark: SparkSession, path: str) -> bool:
    """Return whether the table's lease is currently held."""
    return bool(_held_until(spark, path, tables.snapshot(spark, path)))


@contextlib.contextmanager
def held(spark: SparkSession, path: str, name: str) -> Iterator[None]:
    """Hold a lease on the table during the block.

    Raises TableError if another process holds the lease, or has taken it before the block ended.
    """
    holder = uuid.uuid4().hex

    def take() -> None:
        commit = tables.begin(spark, path)
        until = _held_until(spark, path, commit.snapshot)
        if until:
            raise TableError(f"{name} is already being rebuilt, replayed or maintained; {_wait_until(until)}")
        commit.set_properties({_PROPERTY: holder})

    with _holding(spark, path, name, holder, _PROPERTY, take=take):
        yield


@contextlib.contextmanager
def held_part(spark: SparkSession, path: str, part: str, what: str) -> Iterator[None]:
    """Hold a lease on a part of the table's rows during the block; `what` names the purpose.

    Raises TableError if another process holds the lease, with a message that names it, or has taken the lease
    before the block ended.
    """
    holder = uuid.uuid4().hex
    key = f"{_PROPERTY}.{part}.{holder}"
    value = f"{what} (process {os.getpid()} on {socket.gethostname()})"

    def take() -> None:
        commit = tables.begin(spark, path)
        others = list(_leases_of(spark, path, part, commit.snapshot))
        for one in others:
            if one.until:
                raise TableError(f"{what} must wait: {one.what} is running; {_wait_until(one.until)}")
        over = {one.key: None for one in others if not one.until}
        commit.set_properties({**over, key: value})

    with _holding(spark, path, what, holder, key, take=take):
        yield


def _wait_until(until: float) -> str:
    ahead_s = until - _LENGTH_S - time.time()
    clocks = f" by a clock {ahead_s:.0f} s ahead of this one" if ahead_s > 1 else ""
    return (
        f"its lease lasts at least until {datetime.fromtimestamp(until, UTC):%F %T} UTC{clocks}; wait for "
        "the other process to end, or until then if it was killed"
    )


@contextlib.contextmanager
def _holding(
    spark: SparkSession, path: str, what: str, holder: str, key: str, *, take: Callable[[], None]
) -> Iterator[None]:
    """Take a lease, renew it during the block, and release it."""
    terms = _terms(spark, path)
    terms.renew(holder)
    terms.forget_the_dead()
    try:
        tables.retry_on_conflict(take)
        try:
            with beside("lease", partial(_renew, spark, path, holder)):
                yield
        finally:
            is_own = tables.retry_on_conflict(lambda: _give_back(spark, path, holder, key))
        if not is_own:
            raise TableError(
                f"{what}: this process paused for longer than its lease lasts ({_LENGTH_S:.0f} s), and "
                "another process has taken the lease; run the command again"
            )
    finally:
        terms.forget(holder)


def _give_back(spark: SparkSession, path: str, holder: str, key: str) -> bool:
    """Remove the property. If the lease has expired and another process has taken it, return False."""
    commit = tables.begin(spark, path)
    standing = commit.snapshot.metadata().configuration().get(key)
    is_own = standing.isDefined() and holder in (key.rpartition(".")[2], str(standing.get()))
    if is_own:
        commit.set_properties({key: None})
    return bool(is_own)


def _renew(spark: SparkSession, path: str, holder: str, over: threading.Event) -> None:
    while not over.wait(_RENEWED_EVERY_S):
        try:
            _terms(spark, path).renew(holder)
        except (OSError, Py4JError):  # such as a full disk: the current term is still valid for a while
            log.warning("the lease on %s was not renewed", path, exc_info=True)


def _held_until(spark: SparkSession, path: str, snapshot: Any) -> float:
    """Return when the table's lease ends, in seconds since the epoch, or 0 if there is no lease."""
    holder = snapshot.metadata().configuration().get(_PROPERTY)
    return _terms(spark, path).until(str(holder.get())) if holder.isDefined() else 0.0


def _terms(spark: SparkSession, path: str) -> Terms:
    return Terms(spark, f"{path}/{_DIRECTORY}", _LENGTH_S)


@dataclass(frozen=True)
class _Lease:
    """A lease on part of a table: its property, purpose and end (s since the epoch; 0 if expired)."""

    key: str
    what: str
    until: float


def _leases_of(spark: SparkSession, path: str, part: str, snapshot: Any) -> Iterator[_Lease]:
    """Yield the leases on a part of the table, including expired ones."""
    prefix = f"{_PROPERTY}.{part}."
    for key, value in tables.properties_of(snapshot).items():
        if key.startswith(prefix):
            yield _Lease(key, value, _terms(spark, path).until(key.removeprefix(prefix)))
