"""Work that runs in a thread alongside a test, and events to send."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from tests.support.pipeline import Raw


def event(at: datetime, value: float = 1.0) -> Raw:
    record = {"serviceId": "s", "metricName": "m", "value": value, "timestamp": int(at.timestamp() * 1000)}
    return Raw(json.dumps(record).encode())


@contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run the work in a thread for the duration of the block; if it fails, so does the test."""
    over, failures = threading.Event(), list[BaseException]()

    def guarded() -> None:
        try:
            work(over)
        except BaseException as failure:  # noqa: BLE001 - raised below
            failures.append(failure)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(300)
    assert failures == []
    assert not thread.is_alive()
