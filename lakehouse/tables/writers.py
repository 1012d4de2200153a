"""How many applications may write to a lake.

On a disk and on HDFS as many as like: a commit's file can be created only once. A store of S3 has to refuse a
conditional write for that, which older ones do not. There, one application alone may write.
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

from lakehouse.background import beside
from lakehouse.errors import TableError, first_line
from lakehouse.paths import is_on_s3
from lakehouse.spark import objects, storage
from lakehouse.tables.terms import Terms

TERM_S = 30.0
_RENEWED_EVERY_S = 5.0
_PROBES, _LOCK = "_lakehouse_probe", "_lakehouse_writer"
log = logging.getLogger(__name__)


@contextmanager
def admitted(spark: SparkSession, lake: str, *, has_one_writer: bool, reads_only: bool) -> Iterator[None]:
    """Let this application write to the lake during the block, or only read it.

    Where the store has no conditional writes, a lock keeps every other writer out for that long. Raises
    TableError if the user has not said that there is one writer, or if there is another one.
    """
    if reads_only or not is_on_s3(lake) or refuses_overwrites(spark, lake):
        yield
    elif not has_one_writer:
        raise TableError(
            f"the store of {lake} takes a second object of the same name although the request forbids it "
            "(If-None-Match), so two applications would lose each other's commits. Use a store with "
            "conditional writes, or set LAKEHOUSE_LAKE_HAS_ONE_WRITER=true if one application alone ever "
            "writes there (`lakehouse run all`, and no writing command beside it)"
        )
    else:
        with _alone(spark, lake):
            yield


def refuses_overwrites(spark: SparkSession, lake: str) -> bool:
    """Write an object twice, and tell whether the store has refused the second one.

    Also true if nothing may be written there at all. Raises TableError if the store cannot be used.
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
        raise TableError(f"the store of {lake} cannot be used: {first_line(error.java_exception)}") from error


@contextmanager
def _alone(spark: SparkSession, lake: str) -> Iterator[None]:
    """Hold the lake's lock: a sign of life which is renewed, and which every other writer looks for.

    Both note themselves before they look, so of two that come at once at least one sees the other.
    """
    terms = Terms(spark, f"{lake}/{_LOCK}", TERM_S)
    me = re.sub(r"\W", "_", f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}")
    terms.renew(me)
    try:
        if others := terms.alive() - {me}:
            raise TableError(
                f"{lake} has one writer, which is {_shown(min(others))}; stop it. If it was killed, its lock "
                f"ends {TERM_S:.0f} s later"
            )
        terms.forget_the_dead()
        with beside("writer", partial(_renew, terms, me)):
            yield
    finally:
        terms.forget(me)


def _renew(terms: Terms, me: str, over: threading.Event) -> None:
    """Renew the lock until it is given back; end this process if it has run out and another one has it."""
    renewed_at = time.monotonic()
    while not over.wait(_RENEWED_EVERY_S):
        try:
            if time.monotonic() - renewed_at > TERM_S and (others := terms.alive() - {me}):
                log.critical("the lock of %s is lost to %s", terms.directory, _shown(min(others)))
                os.kill(os.getpid(), signal.SIGTERM)
                return
            terms.renew(me)
            renewed_at = time.monotonic()
        except (OSError, Py4JError):  # the store is away: the next time may succeed
            log.warning("the writer's lock was not renewed", exc_info=True)


def _shown(name: str) -> str:
    host, pid, _ = name.rsplit("_", 2)
    return f"process {pid} on {host}"
