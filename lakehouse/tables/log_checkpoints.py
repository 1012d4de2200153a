"""Checkpoints of tables' logs, written beside a live run's micro-batches instead of inside them.

Delta writes one at the end of every hundredth commit. It takes half a second, and some seconds while Java has
not compiled it yet. The tables of a stream have their hundredth commits in the same trip, whose events would
wait for all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from lakehouse.spark.execution import are_few, execute_for
from lakehouse.spark.query_errors import error_line
from lakehouse.spark.session import activate
from lakehouse.tables import log

_THROWS = "spark.databricks.delta.checkpoint.exceptionThrowing.enabled"  # by default a failure is only logged


class Checkpointer:
    """Writes checkpoints in a thread of its own, one after the other.

    A log gets one as soon as it has a hundred commits behind the last, whoever made them. So one that a kill
    or the end of a run forestalled is made up for after the next commit; one that failed, a hundred later.
    """

    def __init__(self, spark: SparkSession, on_notice: Callable[[str], None]) -> None:
        self._session = spark.newSession()  # what it sets is not for those who plan meanwhile
        self._session.conf.set(_THROWS, "true")
        jvm: Any = self._session._jvm
        self._hook = getattr(getattr(jvm.org.apache.spark.sql.delta.hooks, "CheckpointHook$"), "MODULE$")
        self._on_notice = on_notice
        self._thread = ThreadPoolExecutor(1, "log-checkpoints")
        self._lock = threading.Lock()
        self._is_open = True
        self._last: dict[str, int] = {}

    def take_over(self, txn: Any) -> None:
        """Let the transaction write no checkpoint after its commit."""
        txn.postCommitHooks().subtractOne(self._hook)

    def committed(self, path: str, version: int, last: int) -> None:
        """Take notice of a commit to a log whose last checkpoint was of the version `last`, -1 for none."""
        with self._lock:
            last = max(last, self._last.get(path, last))
            if self._is_open and version - last >= log.CHECKPOINT_INTERVAL:
                self._last[path] = version
                self._thread.submit(self._write, path)

    def close(self) -> None:
        """Finish the checkpoint that is being written, and begin no other."""
        with self._lock:
            self._is_open = False
        self._thread.shutdown(cancel_futures=True)

    def _write(self, path: str) -> None:
        try:
            activate(self._session)
            delta_log = log.log_of(self._session, path)
            found = delta_log.unsafeVolatileSnapshot()  # the commit's, or a later one
            # Of a table that is merged for days, it has the names of some hundred thousand removed files.
            execute_for(self._session, few=are_few(size_bytes=log.checkpoint_bytes(found.logSegment())))
            delta_log.checkpoint(found, self._session._jvm.scala.Option.empty())  # type: ignore[union-attr]
        except Exception as failure:  # noqa: BLE001 - told, and made up for
            self._on_notice(f"{path}: its log got no checkpoint: {error_line(failure)}")


_current: Checkpointer | None = None


def current() -> Checkpointer | None:
    """Return the checkpointer of the live run in this process, null if there is none."""
    return _current


@contextmanager
def written_beside(spark: SparkSession, on_notice: Callable[[str], None]) -> Iterator[None]:
    """Write the checkpoints of everything that this process commits in the block beside its commits.

    Within another such block it does nothing.
    """
    global _current  # noqa: PLW0603 - one per process, as Delta's own cache of logs
    if _current is not None:
        yield
        return
    _current = Checkpointer(spark, on_notice)
    try:
        yield
    finally:
        ending, _current = _current, None
        ending.close()
