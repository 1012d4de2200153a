"""Limit the number of applications that write to a lake.

On a disk and on HDFS, any number of applications can write, because a commit's file can be created only once.
On S3, this requires a store with conditional writes. On older stores, which lack conditional writes, only one
application may write.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from lakehouse.common.background import beside
from lakehouse.common.errors import TableError, first_line
from lakehouse.common.paths import is_on_s3
from lakehouse.storage.spark import files as storage
from lakehouse.storage.spark import objects
from lakehouse.storage.tables.terms import Terms

TERM_S = 30.0
_RENEWED_EVERY_S = 5.0
_PROBES, _LOCK = "_lakehouse_probe", "_lakehouse_writer"
log = logging.getLogger(__name__)


@contextmanager
def admitted(spark: SparkSession, lake: str, *, has_one_writer: bool, reads_only: bool) -> Iterator[None]:
    """Let this application write to the lake during the block.

    With `reads_only`, the application only reads and needs no lock. Otherwise, if the store has no
    conditional writes, a lock excludes every other writer. Raises TableError if the lock is needed but
    `has_one_writer` is not set, or if there is another writer.
    """
    if reads_only or not is_on_s3(lake) or refuses_overwrites(spark, lake):
        yield
    elif not has_one_writer:
        raise TableError(
            f"the storage for {lake} ignores conditional writes (If-None-Match): it accepts a second object "
            "of the same name, so two applications would overwrite each other's commits. Use a store with "
            "conditional writes, or set s3.single_writer = true (LAKEHOUSE_S3_SINGLE_WRITER=true) if only "
            "one application ever writes there (`lakehouse run all`, and no other command that writes)"
        )
    else:
        with _alone(spark, lake):
            yield


def refuses_overwrites(spark: SparkSession, lake: str) -> bool:
    """Write an object twice, and return whether the store refused the second write.

    Also returns true if this application has no permission to write to the store. Raises TableError if the
    store cannot be used.
    """
    probe = f"{lake}/{_PROBES}/{uuid.uuid4()}"
    try:
        objects.create(spark, probe, "first")
        try:
            return not objects.create(spark, probe, "second")
        finally:
            storage.delete(spark, probe)
    except objects.ReadOnlyError:
        return True
    except Py4JJavaError as error:
        raise TableError(
            f"the storage for {lake} cannot be used: {first_line(error.java_exception)}"
        ) from error


@contextmanager
def _alone(spark: SparkSession, lake: str) -> Iterator[None]:
    """Hold the lake's lock during the block: a term that is renewed, and that every other writer checks.

    Each writer creates its own term before it checks the others' terms. If two writers start at the same
    time, at least one of them sees the other's term.
    """
    terms = Terms(spark, f"{lake}/{_LOCK}", TERM_S)
    me = re.sub(r"\W", "_", f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}")
    terms.renew(me)
    try:
        if others := terms.alive() - {me}:
            raise TableError(
                f"{lake} already has a writer, {_shown(min(others))}; stop it. If it was killed, its "
                f"lock expires after {TERM_S:.0f} s"
            )
        terms.forget_the_dead()
        with beside("writer", partial(_renew, terms, me)):
            yield
    finally:
        terms.forget(me)


def _renew(terms: Terms, me: str, over: threading.Event) -> None:
    """Renew the lock until it is released. If another process has taken the lock, end this process."""
    renewed_at = time.monotonic()
    while not over.wait(_RENEWED_EVERY_S):
        try:
            if time.monotonic() - renewed_at > TERM_S and (others := terms.alive() - {me}):
                log.critical("the writer's lock on %s was lost to %s", terms.directory, _shown(min(others)))
                os.kill(os.getpid(), signal.SIGTERM)
                return
            terms.renew(me)
            renewed_at = time.monotonic()
        except (OSError, Py4JError):  # the store is unavailable: the next renewal may succeed
            log.warning("the writer's lock was not renewed", exc_info=True)


def _shown(name: str) -> str:
    host, pid, _ = name.rsplit("_", 2)
    return f"process {pid} on {host}"
