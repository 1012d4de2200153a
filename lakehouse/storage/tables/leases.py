"""Leases on tables. While a process holds a table's lease, the query that writes to the table waits.

A table property, `lakehouse.lease`, names the holder. A process takes a lease by committing a change to the
table's metadata. This commit conflicts with every write in progress, so no write that began earlier is
committed afterwards. A term next to the table's files (`terms`) contains the expiry time, and the holder
renews the term while it is alive. Renewing takes no commit, because a commit would conflict with the holder's
own writes. If two processes take a lease at the same time, the second commit conflicts. The second process
then retries and finds the first lease.

If the holder is killed, its lease expires, and the next process that writes removes the lease. A holder might
only have been paused, so each of its commits requires that the table still names it as the holder. A holder
whose clock is slow by more than a term (`terms`) loses its lease in the same way, because the lease seems to
have expired.

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
from lakehouse.storage.tables.commits import requiring
from lakehouse.storage.tables.specs import LEASE
from lakehouse.storage.tables.terms import Terms

_DIRECTORY = "_lakehouse_lease"  # VACUUM skips names that begin with an underscore
_LENGTH_S = 60.0
_RENEWED_EVERY_S = 15.0
_LOOK_EVERY_S = 0.2
log = logging.getLogger(__name__)


def begin(spark: SparkSession, path: str) -> Commit:
    """Wait until the table has no lease, and begin a commit. A lease taken later conflicts with the commit.

    An expired lease is removed, so its holder can no longer commit, even if the holder was only paused.
    """
    while (holder := _holder_in((commit := tables.begin(spark, path)).snapshot)) is not None:
        if _terms(spark, path).until(holder):
            time.sleep(_LOOK_EVERY_S)
        else:
            tables.retry_on_conflict(partial(_give_back, spark, path, holder, LEASE))
    return commit


def is_held(spark: SparkSession, path: str) -> bool:
    """Return whether the table's lease is currently held."""
    return bool(_held_until(spark, path, tables.snapshot(spark, path)))


@contextlib.contextmanager
def held(spark: SparkSession, path: str, name: str) -> Iterator[None]:
    """Hold a lease on the table during the block.

    Raises TableError if another process holds the lease. If the lease expires while this process is paused,
    and another process takes or removes the lease, the block's next commit to the table raises TableError and
    writes nothing. The end of the block also raises TableError.
    """
    holder = uuid.uuid4().hex

    def take() -> None:
        commit = tables.begin(spark, path)
        until = _held_until(spark, path, commit.snapshot)
        if until:
            raise TableError(f"{name} is already being rebuilt, replayed or maintained; {_wait_until(until)}")
        commit.set_properties({LEASE: holder})

    with _holding(spark, path, name, holder, LEASE, take=take):
        yield


@contextlib.contextmanager
def held_part(spark: SparkSession, path: str, part: str, what: str) -> Iterator[None]:
    """Hold a lease on part of the table's rows during the block. `what` describes the work, for messages.

    Raises TableError if another process holds the lease; the message names that process. If the lease
    expires, the block fails as in `held`.
    """
    holder = uuid.uuid4().hex
    key = f"{LEASE}.{part}.{holder}"
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
    clocks = f" by a clock {ahead_s:.0f} s ahead of this machine's" if ahead_s > 1 else ""
    return (
        f"its lease lasts at least until {datetime.fromtimestamp(until, UTC):%F %T} UTC{clocks}; wait "
        "until the other process ends or, if it was killed, until that time"
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
            require = partial(_require, what=what, holder=holder, key=key)
            with beside("lease", partial(_renew, spark, path, holder)), requiring(path, require):
                yield
        finally:
            is_own = tables.retry_on_conflict(lambda: _give_back(spark, path, holder, key))
        if not is_own:
            raise _lost(what)
    finally:
        terms.forget(holder)


def _require(snapshot: Any, *, what: str, holder: str, key: str) -> None:
    if not _is_holder(snapshot, holder, key):
        raise _lost(what)


def _lost(what: str) -> TableError:
    return TableError(
        f"{what}: another process took over, because this one had not renewed its lease for "
        f"{_LENGTH_S:.0f} s: this process was paused, or its clock is slow. Run the command again"
    )


def _give_back(spark: SparkSession, path: str, holder: str, key: str) -> bool:
    """Remove the lease from the table's properties, and return whether `holder` still held it."""
    commit = tables.begin(spark, path)
    is_own = _is_holder(commit.snapshot, holder, key)
    if is_own:
        commit.set_properties({key: None})
    return is_own


def _is_holder(snapshot: Any, holder: str, key: str) -> bool:
    standing = snapshot.metadata().configuration().get(key)
    return bool(standing.isDefined()) and holder in (key.rpartition(".")[2], str(standing.get()))


def _renew(spark: SparkSession, path: str, holder: str, over: threading.Event) -> None:
    while not over.wait(_RENEWED_EVERY_S):
        try:
            _terms(spark, path).renew(holder)
        except (OSError, Py4JError):  # such as a full disk: the current term is still valid for a while
            log.warning("the lease on %s was not renewed", path, exc_info=True)


def _held_until(spark: SparkSession, path: str, snapshot: Any) -> float:
    """Return when the table's lease ends, in seconds since the epoch, or 0 if there is no valid lease."""
    holder = _holder_in(snapshot)
    return 0.0 if holder is None else _terms(spark, path).until(holder)


def _holder_in(snapshot: Any) -> str | None:
    holder = snapshot.metadata().configuration().get(LEASE)
    return str(holder.get()) if holder.isDefined() else None


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
    prefix = f"{LEASE}.{part}."
    for key, value in tables.properties_of(snapshot).items():
        if key.startswith(prefix):
            yield _Lease(key, value, _terms(spark, path).until(key.removeprefix(prefix)))
